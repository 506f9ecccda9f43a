// SPDX-License-Identifier: Apache-2.0

/* What clients get: a part of the multiprocessors and of the memory. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"

double active_threads_percentage = 100;
uint64_t pinned_limits[MAX_DEVICES];

/* Some drivers take a limit by UUID and limit nobody (NVIDIA/k8s-device-plugin#572), and so does this one. */
static int place_of(const char *id)
{
    if (!isdigit((unsigned char)id[0]))
        return -1;
    unsigned long index = strtoul(id, NULL, 10);
    return index < devices.count ? (int)index : -1;
}

void limits_take(const char *list)
{
    char id[TEXT_SIZE];
    uint64_t bytes;
    while (next_limit(&list, id, &bytes)) {
        int place = place_of(id);
        if (place < 0)
            continue;
        pinned_limits[place] = bytes;
        log_line("Server", "Device pinned memory limit for device %d set to 0x%llx bytes", place,
                 (unsigned long long)bytes);
    }
}
