/* The simulated node that this program runs on: its state file, and the place of its one IMEX instance. */
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "daemon.h"
#include "snapshot.h"

#define PROGRAM "/proc/self/exe"

enum { CAPABILITY_MINOR = 4323 }; /* fabric-imex-mgmt (nvml-simulator.md §14.4) */

static const int64_t A_MINUTE_NS = INT64_C(60000000000);

static void *bytes; /* the mapped state file */

/* The firmware folder of the driver root that this program is installed in; of a container, whose root is `/`. */
static bool find_beside_program(char path[PATH_MAX])
{
    char program[PATH_MAX], pattern[PATH_MAX + 64];
    ssize_t length = readlink(PROGRAM, program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    for (char *end = strrchr(program, '/'); end != NULL; end = strrchr(program, '/')) {
        glob_t found;
        *end = '\0';
        snprintf(pattern, sizeof pattern, "%s/lib/firmware/nvidia/*/gsp_nvdra_sim.bin", program);
        bool there = glob(pattern, 0, NULL, &found) == 0;
        if (there)
            snprintf(path, PATH_MAX, "%s", found.gl_pathv[0]);
        globfree(&found);
        if (there)
            return true;
    }
    return false;
}

static void find(char path[PATH_MAX])
{
    const char *given = getenv("NVDRA_SIM_STATE");
    if (given != NULL && given[0] != '\0')
        snprintf(path, PATH_MAX, "%s", given);
    else if (!find_beside_program(path))
        snprintf(path, PATH_MAX, "/var/lib/nvdra-sim/state.bin");
}

bool host_open(void)
{
    char path[PATH_MAX];
    struct stat info;
    find(path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    if (fstat(file, &info) == 0 && info.st_size == SIM_FILE_SIZE)
        bytes = mmap(NULL, SIM_FILE_SIZE, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return bytes != NULL && bytes != MAP_FAILED && snapshot_is_ours(bytes);
}

static const struct sim_description *description(void)
{
    return (const void *)((const unsigned char *)bytes + SIM_AT_DESCRIPTION);
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
    return stat(path, &info) == 0 && S_ISCHR(info.st_mode) && major(info.st_rdev) == description()->caps_major &&
           minor(info.st_rdev) == CAPABILITY_MINOR;
}

bool host_needs_capability(void)
{
    return description()->imex_needs_capability;
}

const char *host_driver_version(void)
{
    return description()->driver_version;
}

unsigned host_signal_window_ms(void)
{
    return description()->imex_signal_window_ms;
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
