// SPDX-License-Identifier: Apache-2.0

/* The log lines of the control daemon and its servers. */
#pragma once

/* Lines go to this descriptor; -1: nowhere. */
void log_open(int file);
/* `part` is what the real programs call themselves: Control, Server, or Other for a server that has not begun. */
void log_line(const char *part, const char *format, ...) __attribute__((format(printf, 2, 3)));
