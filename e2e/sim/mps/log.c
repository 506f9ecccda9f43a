// SPDX-License-Identifier: Apache-2.0

/* Log lines as the real programs write them: [2026-11-24 04:05:49.123 Control    72] text. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "mps.h"

static int log_file = -1;

void log_open(int file)
{
    log_file = file;
}

void log_line(const char *part, const char *format, ...)
{
    char text[MESSAGE_SIZE], line[MESSAGE_SIZE + 128], stamp[32];
    struct timespec now;
    struct tm parts;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&now.tv_sec, &parts));
    int length = snprintf(line, sizeof line, "[%s.%03ld %s %5d] %s\n", stamp, now.tv_nsec / 1000000, part, getpid(),
                          text);
    /* One write a line, so that lines of several processes do not mix. A full disk loses lines, not the daemon. */
    if (log_file >= 0 && write(log_file, line, (size_t)length) < 0)
        return;
}
