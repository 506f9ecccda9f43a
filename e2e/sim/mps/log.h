/* The log lines of the control daemon and its servers. */
#pragma once

#include <stdbool.h>

/* Lines go to this descriptor, and to standard output if the daemon is in the foreground. */
void log_open(int file, bool also_on_stdout);
/* `part` is what the real programs call themselves: Control, Server, or Other for a server that has not begun. */
void log_line(const char *part, const char *format, ...) __attribute__((format(printf, 2, 3)));
