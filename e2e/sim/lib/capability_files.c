// SPDX-License-Identifier: Apache-2.0

/*
 * The capability files of MIG instances below the simulated /proc (nvml-simulator.md §14.4), which the kernel module has
 * made or removed when NVML answers. The files of a GPU are always written as a whole, so that a change also repairs what
 * one that was killed has left behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mig.h"
#include "snapshot.h"

/* A directory for each instance, with the file `access`. The prefix of its parent fits with room to spare. */
struct path {
    char text[SIM_MAX_PROC_ROOT + 128];
};

static struct path below(const struct path *directory, const char *name, unsigned number)
{
    struct path path;
    snprintf(path.text, sizeof path.text, "%.*s/%s%u", SIM_MAX_PROC_ROOT + 96, directory->text, name, number);
    return path;
}

static bool make_directories(struct path path)
{
    for (char *end = strchr(path.text + 1, '/'); end != NULL; end = strchr(end + 1, '/')) {
        *end = '\0';
        if (mkdir(path.text, 0755) != 0 && errno != EEXIST)
            return false;
        *end = '/';
    }
    return mkdir(path.text, 0755) == 0 || errno == EEXIST;
}

static bool write_text(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
    if (file < 0)
        return false;
    bool complete = write(file, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(file, 0444) == 0;
    close(file);
    return complete;
}

/* By rename, so that nobody reads half of it. What a file says follows from its path, so an existing one is right. */
static bool make_file(const struct path *directory, unsigned capability)
{
    char path[sizeof directory->text + 16], new[sizeof path + 16], text[128];
    snprintf(path, sizeof path, "%s/access", directory->text);
    if (access(path, F_OK) == 0)
        return true;
    snprintf(new, sizeof new, "%s/.access.new", directory->text);
    snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", capability);
    unlink(new); /* of a process that was killed */
    return make_directories(*directory) && write_text(new, text) && rename(new, path) == 0;
}

static bool remove_file(const struct path *directory)
{
    char path[sizeof directory->text + 16];
    snprintf(path, sizeof path, "%s/access", directory->text);
    bool gone = unlink(path) == 0 || errno == ENOENT;
    rmdir(directory->text);
    return gone;
}

static bool write_instance(const struct path *directory, unsigned capability, const struct sim_gpu_instance *record)
{
    struct path gpu_instance = *directory;
    bool written = true;
    if (!record->in_use && access(gpu_instance.text, F_OK) != 0)
        return true;
    for (unsigned i = 0; i < SIM_MAX_COMPUTE_INSTANCES; i++) {
        struct path compute_instance = below(&gpu_instance, "ci", i);
        bool exists = record->in_use && record->compute[i].in_use;
        written &= exists ? make_file(&compute_instance, capability + 1 + i) : remove_file(&compute_instance);
    }
    return (record->in_use ? make_file(&gpu_instance, capability) : remove_file(&gpu_instance)) && written;
}

nvml_code write_capability_files(const struct sim_node_state *next, unsigned gpu)
{
    const char *root = snapshot_header(state_bytes())->proc_root;
    if (root[0] == '\0' || access(root, F_OK) != 0)
        return NVML_SUCCESS; /* a container without it */
    unsigned minor = next->gpus[gpu].minor;
    struct path top, mig;
    snprintf(top.text, sizeof top.text, "%.*s/driver/nvidia/capabilities/gpu%u", SIM_MAX_PROC_ROOT, root, minor);
    snprintf(mig.text, sizeof mig.text, "%.*s/mig", SIM_MAX_PROC_ROOT + 64, top.text);
    bool written = true;
    for (unsigned i = 0; i < CAPABLE_GPU_INSTANCES; i++) {
        struct path directory = below(&mig, "gi", i);
        written &= write_instance(&directory, capability_of(minor, i), &next->tables[gpu].instances[i]);
    }
    rmdir(mig.text);
    rmdir(top.text);
    return written ? NVML_SUCCESS : NVML_OPERATING_SYSTEM;
}
