// SPDX-License-Identifier: Apache-2.0

/* What nvidia-imex-ctl knows of a domain, how it learns that, and the two ways it shows it. */
#pragma once

#include "imex.h"

enum { UNKNOWN = -1 };

/* Where and how patiently daemons are asked. */
struct service {
    struct address own;     /* of the daemon of this node */
    unsigned port;          /* of the others */
    const char *interface;  /* of link-local addresses */
    int64_t patience_ms;    /* for one answer; negative: without limit */
    bool word_when_missing; /* says UNAVAILABLE instead of failing when there is no daemon */
};

/* One line for one word; false: no daemon there, or it breaks off. */
bool service_ask(const struct service *service, const struct address *address, const char *question,
                 char answer[LINE_SIZE]);

struct peer {
    char state[32], version[32], hostname[NAME_SIZE], row[MAX_NODES + 1];
};

struct domain {
    const char *state;
    char time[64];
    int asked; /* number of this node; UNKNOWN: its daemon gives no answer */
    struct nodes nodes;
    struct peer peers[MAX_NODES];
};

/* Asks the daemon of every node, all at once; who gives no answer is UNAVAILABLE. */
void domain_learn(struct domain *domain, const struct service *service);

void show_table(const struct domain *domain, bool with_hostnames);
void show_json(const struct domain *domain);
