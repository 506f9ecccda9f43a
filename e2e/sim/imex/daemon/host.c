// SPDX-License-Identifier: Apache-2.0

/* The simulated node that this program runs on: its state file, and the place of its one IMEX instance. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "daemon.h"
#include "snapshot.h"

#define PROGRAM "/proc/self/exe"

enum { CAPABILITY_MINOR = 4323 }; /* fabric-imex-mgmt (nvml-simulator.md §14.4) */

static const int64_t A_MINUTE_NS = INT64_C(60000000000);

static void *bytes; /* the mapped state file */

bool host_open(void)
{
    bytes = driver_state();
    return bytes != NULL;
}

const struct sim_description *host_description(void)
{
    return driver_description(bytes);
}

bool host_driver_is_loaded(void)
{
    bool loaded;
    SNAPSHOT_READ(bytes, state, loaded = state->module_loaded);
    return loaded;
}

/* Every container of a host has the same installed program, but a root, a network and a /run of its own. */
bool host_claim(void)
{
    int file = open(PROGRAM, O_RDONLY | O_CLOEXEC);
    return file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0;
}

bool host_has_capability(void)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%d", CAPABILITY_MINOR);
    return stat(path, &info) == 0 && S_ISCHR(info.st_mode) && major(info.st_rdev) == host_description()->caps_major &&
           minor(info.st_rdev) == CAPABILITY_MINOR;
}

struct sim_imex host_faults(void)
{
    struct sim_imex faults;
    SNAPSHOT_READ(bytes, state, faults = state->imex);
    return faults;
}

static void *watch(void *wake)
{
    for (uint32_t seen = snapshot_changes(bytes);; seen = snapshot_changes(bytes)) {
        uint64_t one = 1;
        snapshot_wait(bytes, seen, A_MINUTE_NS);
        if (snapshot_changes(bytes) != seen && write(*(int *)wake, &one, sizeof one) < 0)
            return NULL;
    }
}

bool host_watch(int wake)
{
    static int descriptor;
    pthread_t thread;
    descriptor = wake;
    return pthread_create(&thread, NULL, watch, &descriptor) == 0 && pthread_detach(thread) == 0;
}
