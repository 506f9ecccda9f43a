// SPDX-License-Identifier: Apache-2.0

/*
 * Handles of GPUs: which there are, and who may see them. Those of MIG are in instances.c.
 *
 * A handle is the address of a slot in a table of this library; anything else is refused without looking behind it.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "sim.h"

struct nvml_device {
    char slot;
};
static struct nvml_device slots[SIM_MAX_GPUS];

nvml_device handle_of(unsigned gpu)
{
    return &slots[gpu];
}

nvml_code open_gpu(unsigned number, struct call *call, struct gpu *gpu)
{
    if (number >= description()->gpu_count)
        return NVML_INVALID_ARGUMENT;
    gpu->number = number;
    gpu->spec = &description()->gpus[number];
    gpu->now = read_gpu(number);
    if (!gpu->now.bound_to_nvidia)
        return module_is_loaded() ? NVML_INVALID_ARGUMENT : NVML_DRIVER_NOT_LOADED;
    nvml_code code = ask_driver(call, (int)number);
    if (code != NVML_SUCCESS)
        return code;
    gpu->now = read_gpu(number); /* a rule may have waited */
    if (gpu->now.lost)
        return NVML_GPU_IS_LOST;
    code = use_gpu(number);
    gpu->now = read_gpu(number);
    return gpu->now.lost || gpu->now.removing ? NVML_GPU_IS_LOST : code;
}

nvml_code gpu_of(nvml_device device, struct call *call, struct gpu *gpu)
{
    struct sim_gpu_instance record;
    gpu->is_mig = instance_of(device, MIG_DEVICE, &gpu->instance);
    if (!gpu->is_mig)
        return open_gpu((unsigned)((uintptr_t)device - (uintptr_t)slots), call, gpu);
    if (!instance_exists(&gpu->instance, &record))
        return NVML_INVALID_ARGUMENT;
    return open_gpu(gpu->instance.gpu, call, gpu);
}

enum { AMPERE = 7 };

bool remaps_rows(const struct gpu *gpu)
{
    return gpu->spec->ecc && gpu->spec->architecture >= AMPERE;
}

/* ---- visibility (§10.5) ------------------------------------------------------------------------------- */

bool is_device_node(const char *path, unsigned major_number, unsigned minor_number)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISCHR(info.st_mode) &&
           info.st_rdev == makedev(major_number, minor_number);
}

/* A stand-in for nodes, which can be opened, has the same number for all GPUs. */
static bool is_node_of(const char *path, unsigned gpu, const struct sim_gpu_state *now)
{
    const struct sim_gpu_spec *spec = &description()->gpus[gpu];
    return is_device_node(path, spec->node_major, description()->stand_in_nodes ? spec->node_minor : now->minor);
}

int open_device_node(unsigned gpu)
{
    struct sim_gpu_state now = read_gpu(gpu);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "/dev/nvidia%u", now.minor);
    if (!is_node_of(path, gpu, &now))
        snprintf(path, sizeof path, "%s/nvidia%u", device_root(), now.minor);
    return is_node_of(path, gpu, &now) ? open(path, O_PATH | O_CLOEXEC) : -1;
}

bool sees_only_device_nodes(void)
{
    const struct sim_description *node = description();
    if (node->visibility == SIM_VISIBILITY_AUTO)
        return is_device_node("/dev/nvidiactl", node->control_major, node->control_minor);
    return node->visibility == SIM_VISIBILITY_DEVNODES;
}

/* The GPUs that the first init of the session has found. Another one is found by the next session only. */
static bool is_listed[SIM_MAX_GPUS];

static bool is_there(unsigned gpu)
{
    struct sim_gpu_state now = read_gpu(gpu);
    if (!now.bound_to_nvidia || !sees_only_device_nodes())
        return now.bound_to_nvidia;
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%u", now.minor);
    return is_node_of(path, gpu, &now);
}

bool gpu_is_visible(unsigned gpu)
{
    return is_listed[gpu] && is_there(gpu);
}

unsigned list_gpus(void)
{
    unsigned count = 0;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++) {
        struct sim_gpu_state now = read_gpu(gpu);
        count += is_listed[gpu] = is_there(gpu) && !now.removing && !now.drained;
    }
    return count;
}

unsigned count_visible_gpus(void)
{
    unsigned count = 0;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        count += gpu_is_visible(gpu);
    return count;
}
