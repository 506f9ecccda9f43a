// SPDX-License-Identifier: Apache-2.0

/* What the start needs once, and nothing after it. */
#pragma once

#include "daemon.h"

struct options {
    const char *config;
    bool needs_capability, has_no_gpu;
};

/* Exits for --help and --version; false, and said on standard error: the command line is wrong. */
bool options_read(char **arguments, struct options *options);
complain_function complain_in_log;

/* Goes on in a child; the process that was started ends when the child is up, or has failed. */
void background_enter(void);
void background_is_up(void);

/* Each is false, and logged, when something is missing. */
bool host_is_fit(const struct options *options);
bool doors_open(void);

/* Whether it is this node's: the one it is bound to, or any when it is bound to none. */
bool address_is_own(const struct address *address);
