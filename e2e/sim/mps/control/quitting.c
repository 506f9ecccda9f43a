// SPDX-License-Identifier: Apache-2.0

/* The end of the control daemon: it waits for its servers, and kills those that take too long. */
#include <time.h>

#include "control.h"

static bool quits;
static int64_t deadline_ms = -1; /* when servers that still run are killed; -1: never */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void daemon_quit(long seconds)
{
    quits = true;
    deadline_ms = seconds < 0 ? -1 : now_ms() + seconds * 1000;
    clients_refuse();
    servers_stop(false);
}

bool daemon_quits(void)
{
    return quits;
}

int daemon_patience_ms(void)
{
    if (deadline_ms < 0)
        return -1;
    int64_t left = deadline_ms - now_ms();
    return left < 0 ? 0 : (int)left;
}

void daemon_end_patience(void)
{
    if (deadline_ms < 0 || now_ms() < deadline_ms)
        return;
    deadline_ms = -1;
    servers_stop(true);
}
