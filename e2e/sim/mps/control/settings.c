// SPDX-License-Identifier: Apache-2.0

/* What clients get if nothing else is said: a part of the multiprocessors and of the memory. */
#include <stdlib.h>
#include <string.h>

#include "control.h"

struct settings defaults = {.percentage = 100};

void settings_from_environment(void)
{
    char id[TEXT_SIZE];
    uint64_t bytes;
    const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    double value = percentage != NULL ? strtod(percentage, NULL) : 0;
    if (value > 0 && value <= 100)
        defaults.percentage = value;
    while (limits != NULL && next_limit(&limits, id, &bytes))
        settings_set_limit(&defaults, id, bytes);
}

bool settings_set_limit(struct settings *settings, const char *id, uint64_t bytes)
{
    unsigned place = 0;
    while (place < settings->limit_count && strcmp(settings->limits[place].id, id) != 0)
        place++;
    if (place == MAX_LIMITS || strlen(id) >= TEXT_SIZE)
        return false;
    strcpy(settings->limits[place].id, id);
    settings->limits[place].bytes = bytes;
    if (place == settings->limit_count)
        settings->limit_count++;
    return true;
}

uint64_t settings_limit(const struct settings *settings, const char *id)
{
    for (unsigned i = 0; i < settings->limit_count; i++)
        if (strcmp(settings->limits[i].id, id) == 0)
            return settings->limits[i].bytes;
    return 0;
}

void settings_list(const struct settings *settings, char list[LIST_SIZE])
{
    size_t used = 0;
    list[0] = '\0';
    for (unsigned i = 0; i < settings->limit_count; i++)
        used += (size_t)snprintf(list + used, LIST_SIZE - used, "%s=%lluK,", settings->limits[i].id,
                                 (unsigned long long)(settings->limits[i].bytes >> 10));
}
