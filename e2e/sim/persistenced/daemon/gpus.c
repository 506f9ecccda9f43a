// SPDX-License-Identifier: Apache-2.0

/*
 * A GPU is kept open by a descriptor of its node, and by the lock by which the simulated NVML knows that it has a client.
 *
 * Nodes have no driver here, so they are opened with O_PATH (nvml-simulator.md §14.5). The first client waits until the
 * GPU is initialised.
 */
#include "gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "snapshot.h"

static struct {
    bool is_known, is_open, was_closed;
    int node;
} gpus[SIM_MAX_GPUS];
static unsigned char *bytes;
static int state = -1;
static bool reopening_fails;

static const struct sim_description *description(void)
{
    return (const void *)(bytes + SIM_AT_DESCRIPTION);
}

static struct sim_gpu_state now_of(unsigned gpu)
{
    struct sim_gpu_state copy;
    SNAPSHOT_READ(bytes, now, copy = now->gpus[gpu]);
    return copy;
}

/* ---- the state file ------------------------------------------------------------------------------------------- */

/* In the driver root that this program is installed in. */
static bool find_state(char path[PATH_MAX])
{
    const char *given = getenv("NVDRA_SIM_STATE");
    char program[PATH_MAX], pattern[PATH_MAX + 64];
    if (given != NULL && given[0] != '\0')
        return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
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

bool gpus_find(bool cannot_reopen)
{
    char path[PATH_MAX];
    struct stat info;
    reopening_fails = cannot_reopen;
    state = find_state(path) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (state < 0 || fstat(state, &info) != 0 || info.st_size != SIM_FILE_SIZE)
        return false;
    bytes = mmap(NULL, SIM_FILE_SIZE, PROT_READ, MAP_SHARED, state, 0);
    if (bytes == MAP_FAILED || !snapshot_is_ours(bytes))
        return false;
    bool any = false;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        any |= gpus[gpu].is_known = now_of(gpu).bound_to_nvidia;
    return any;
}

/* ---- opening and closing -------------------------------------------------------------------------------------- */

static void set_lock(short type, unsigned byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    while (fcntl(state, F_OFD_SETLKW, &lock) != 0 && errno == EINTR)
        continue;
}

static bool has_clients(unsigned gpu)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_CLIENT_LOCKS + gpu, .l_len = 1};
    return fcntl(state, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* In this mount namespace, or below the node's own /dev. */
static int open_node(unsigned gpu, unsigned minor_number)
{
    const char *const roots[] = {"/dev", snapshot_header(bytes)->dev_root};
    const struct sim_gpu_spec *spec = &description()->gpus[gpu];
    unsigned minor_in_node = description()->stand_in_nodes ? spec->node_minor : minor_number;
    for (size_t i = 0; i < 2; i++) {
        char path[PATH_MAX];
        struct stat info;
        snprintf(path, sizeof path, "%s/nvidia%u", roots[i], minor_number);
        if (stat(path, &info) == 0 && S_ISCHR(info.st_mode) &&
            info.st_rdev == makedev(spec->node_major, minor_in_node))
            return open(path, O_PATH | O_CLOEXEC);
    }
    return -1;
}

static bool open_gpu(unsigned gpu)
{
    struct sim_gpu_state now = now_of(gpu);
    if (!now.bound_to_nvidia || now.removing || now.drained || now.lost || (reopening_fails && gpus[gpu].was_closed))
        return false;
    set_lock(F_WRLCK, SIM_INITIALISATION_LOCKS + gpu);
    if (!now.persistence && !has_clients(gpu))
        usleep(now.initialisation_ms * 1000);
    gpus[gpu].node = open_node(gpu, now.minor);
    set_lock(F_RDLCK, SIM_CLIENT_LOCKS + gpu);
    set_lock(F_UNLCK, SIM_INITIALISATION_LOCKS + gpu);
    return true;
}

static void close_gpu(unsigned gpu)
{
    if (gpus[gpu].node >= 0)
        close(gpus[gpu].node);
    set_lock(F_UNLCK, SIM_CLIENT_LOCKS + gpu);
    gpus[gpu].was_closed = true;
}

static enum pd_status set(unsigned gpu, bool on)
{
    if (gpus[gpu].is_open == on)
        return PD_SUCCESS;
    if (!on)
        close_gpu(gpu);
    else if (!open_gpu(gpu)) {
        const struct sim_gpu_spec *spec = &description()->gpus[gpu];
        fprintf(stderr, "device %04x:%02x:%02x.0 - failed to open.\n", spec->pci_domain, spec->pci_bus, spec->pci_device);
        return PD_DRIVER;
    }
    gpus[gpu].is_open = on;
    return PD_SUCCESS;
}

static bool find(const struct pd_gpu *wanted, unsigned *found)
{
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++) {
        const struct sim_gpu_spec *spec = &description()->gpus[gpu];
        bool is_it = spec->pci_domain == wanted->domain && spec->pci_bus == wanted->bus;
        if (is_it && spec->pci_device == wanted->slot && gpus[gpu].is_known) {
            *found = gpu;
            return true;
        }
    }
    return false;
}

enum pd_status gpus_set(const struct pd_gpu *wanted, uint32_t mode)
{
    unsigned gpu;
    if (!find(wanted, &gpu))
        return PD_NOT_FOUND;
    return mode > 1 ? PD_INVALID_ARGUMENT : set(gpu, mode);
}

enum pd_status gpus_get(const struct pd_gpu *wanted, uint32_t *mode)
{
    unsigned gpu;
    if (!find(wanted, &gpu))
        return PD_NOT_FOUND;
    *mode = gpus[gpu].is_open;
    return PD_SUCCESS;
}

void gpus_open_all(void)
{
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        if (gpus[gpu].is_known)
            (void)set(gpu, true);
}
