// SPDX-License-Identifier: Apache-2.0

/*
 * MIG devices (nvml-simulator.md §6.4, §7.6-7.8): compute instances seen as devices. Which there are, who may see them,
 * what they are called, and how they are looked up. GPU and compute instances themselves are in mig_gpu_instances.c and
 * mig_compute_instances.c.
 */
#include <stdio.h>

#include "mig.h"

enum { CAPABILITY_CONFIG = 1 };

/* ---- visibility (§10.5) and enumeration --------------------------------------------------------------- */

static bool has_capability_node(unsigned number)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%u", number);
    return is_device_node(path, description()->caps_major, number);
}

/* In a container a MIG device needs both its nodes; who may configure MIG sees all. */
static bool is_visible(unsigned minor, unsigned gpu_instance, unsigned compute_instance)
{
    if (!sees_only_device_nodes() || has_capability_node(CAPABILITY_CONFIG))
        return true;
    unsigned access = capability_of(minor, gpu_instance);
    return has_capability_node(access) && has_capability_node(access + 1 + compute_instance);
}

struct walk {
    unsigned gpu, minor;
    struct sim_gpu_instance records[SIM_MAX_GPU_INSTANCES];
    unsigned next;  /* gpu_instance * SIM_MAX_COMPUTE_INSTANCES + compute_instance */
    unsigned index; /* of the next device */
};

static struct walk walk_over(unsigned gpu)
{
    struct sim_gpu_state now = read_gpu(gpu);
    struct walk walk = {.gpu = gpu, .minor = now.minor};
    if (now.mig_mode)
        read_gpu_instances(gpu, walk.records);
    return walk;
}

/* The next visible MIG device in the order of (GPU instance, compute instance), with its index. */
static bool next_device(struct walk *walk, struct instance *device, unsigned *index)
{
    while (walk->next < SIM_MAX_GPU_INSTANCES * SIM_MAX_COMPUTE_INSTANCES) {
        unsigned gi = walk->next / SIM_MAX_COMPUTE_INSTANCES, ci = walk->next % SIM_MAX_COMPUTE_INSTANCES;
        const struct sim_compute_instance *compute = &walk->records[gi].compute[ci];
        walk->next++;
        if (!walk->records[gi].in_use || !compute->in_use || !is_visible(walk->minor, gi, ci))
            continue;
        *device = (struct instance){MIG_DEVICE, walk->gpu, gi, ci, compute->incarnation};
        *index = walk->index;
        walk->index += description()->mig_sparse_index ? compute->size : 1;
        return true;
    }
    return false;
}

EXPORT nvml_code nvmlDeviceGetMaxMigDeviceCount(nvml_device device, unsigned *count)
{
    CALL(nvmlDeviceGetMaxMigDeviceCount);
    REQUIRE_POINTER(count);
    GPU(device);
    bool counts = gpu.now.mig_mode || description()->mig_capacity_when_off;
    *count = counts ? gpu.spec->mig_compute_slices : 0;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetMigDeviceHandleByIndex(nvml_device device, unsigned index, nvml_device *mig)
{
    struct instance found;
    unsigned place;
    CALL(nvmlDeviceGetMigDeviceHandleByIndex);
    REQUIRE_POINTER(mig);
    GPU(device);
    if (!gpu.now.mig_mode)
        RETURN(description()->mig_not_supported_when_off ? NVML_NOT_SUPPORTED : NVML_NOT_FOUND);
    REQUIRE(index < gpu.spec->mig_compute_slices, NVML_INVALID_ARGUMENT);
    struct walk walk = walk_over(gpu.number);
    while (next_device(&walk, &found, &place)) {
        if (place != index)
            continue;
        *mig = instance_handle(&found);
        RETURN(NVML_SUCCESS);
    }
    RETURN(NVML_NOT_FOUND);
}

/* ---- by UUID ------------------------------------------------------------------------------------------ */

typedef bool predicate(const struct instance *device, const void *wanted);

static bool find(predicate *is_it, const void *wanted, struct instance *found)
{
    unsigned index;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++) {
        if (!gpu_is_visible(gpu))
            continue;
        struct walk walk = walk_over(gpu);
        while (next_device(&walk, found, &index))
            if (is_it(found, wanted))
                return true;
    }
    return false;
}

static bool has_bytes(const struct instance *device, const void *uuid)
{
    struct sim_gpu_instance record;
    return instance_exists(device, &record) &&
           memcmp(record.compute[device->compute_instance].uuid, uuid, 16) == 0;
}

bool find_mig_device_by_bytes(const uint8_t uuid[16], struct instance *found)
{
    return find(has_bytes, uuid, found);
}

/* False: the device is gone. */
static bool write_uuid(const struct instance *device, char text[48])
{
    struct sim_gpu_instance record;
    bool exists = instance_exists(device, &record);
    memcpy(text, "MIG-", 4);
    format_uuid(record.compute[device->compute_instance].uuid, text + 4);
    return exists;
}

static bool has_text(const struct instance *device, const void *wanted)
{
    char text[48], legacy[128];
    if (!write_uuid(device, text))
        return false;
    snprintf(legacy, sizeof legacy, "MIG-%s/%u/%u", description()->gpus[device->gpu].uuid, device->gpu_instance,
             device->compute_instance);
    return strcmp(text, wanted) == 0 || strcmp(legacy, wanted) == 0;
}

bool find_mig_device(const char *uuid, struct instance *found)
{
    return strncmp(uuid, "MIG-", 4) == 0 && find(has_text, uuid, found);
}

/* ---- what a device says of itself --------------------------------------------------------------------- */

struct parts {
    const struct sim_mig_profile *profile;
    struct sim_gpu_instance record;
    const struct sim_compute_instance *compute;
};

/* The records behind a MIG device; false: gone since its handle was checked. */
static bool look_into(const struct gpu *gpu, struct parts *parts)
{
    if (!instance_exists(&gpu->instance, &parts->record))
        return false;
    parts->profile = profile_by_id(gpu, parts->record.profile);
    parts->compute = &parts->record.compute[gpu->instance.compute_instance];
    return parts->profile != NULL;
}

nvml_code mig_name(const struct gpu *gpu, char *name, unsigned length)
{
    struct parts parts;
    char profile[96], text[200];
    if (!look_into(gpu, &parts))
        return NVML_INVALID_ARGUMENT;
    compute_name(parts.profile, parts.compute->size, profile);
    snprintf(text, sizeof text, "%s %s", gpu->spec->name, profile);
    return answer_text(name, length, text);
}

nvml_code mig_uuid(const struct gpu *gpu, char *uuid, unsigned length)
{
    char text[48];
    return write_uuid(&gpu->instance, text) ? answer_text(uuid, length, text) : NVML_INVALID_ARGUMENT;
}

nvml_code mig_index(const struct gpu *gpu, unsigned *index)
{
    struct instance device;
    struct walk walk = walk_over(gpu->number);
    while (next_device(&walk, &device, index))
        if (device.gpu_instance == gpu->instance.gpu_instance &&
            device.compute_instance == gpu->instance.compute_instance)
            return NVML_SUCCESS;
    return NVML_INVALID_ARGUMENT;
}

nvml_code mig_memory(const struct gpu *gpu, uint64_t *total_mib, uint64_t *used_mib)
{
    struct parts parts;
    struct sim_process processes[SIM_MAX_PROCESSES];
    if (!look_into(gpu, &parts))
        return NVML_INVALID_ARGUMENT;
    *total_mib = parts.profile->memory_mib;
    *used_mib = 0;
    read_processes(gpu->number, processes);
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        if (processes[i].pid != 0 && processes[i].gpu_instance == gpu->instance.gpu_instance)
            *used_mib += processes[i].memory_mib;
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlDeviceIsMigDeviceHandle(nvml_device device, unsigned *is_mig)
{
    CALL(nvmlDeviceIsMigDeviceHandle);
    REQUIRE_POINTER(is_mig);
    DEVICE(device);
    *is_mig = gpu.is_mig;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_device mig, nvml_device *device)
{
    CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    REQUIRE_POINTER(device);
    DEVICE(mig);
    REQUIRE(gpu.is_mig, NVML_INVALID_ARGUMENT);
    *device = handle_of(gpu.number);
    RETURN(NVML_SUCCESS);
}

/* What a GPU answers that is asked for the id of an instance, which only a MIG device has. */
static nvml_code no_instance_id(const struct gpu *gpu)
{
    return can_do_mig(gpu) ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
}

EXPORT nvml_code nvmlDeviceGetGpuInstanceId(nvml_device device, unsigned *id)
{
    CALL(nvmlDeviceGetGpuInstanceId);
    REQUIRE_POINTER(id);
    DEVICE(device);
    REQUIRE(gpu.is_mig, no_instance_id(&gpu));
    *id = gpu.instance.gpu_instance;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetComputeInstanceId(nvml_device device, unsigned *id)
{
    CALL(nvmlDeviceGetComputeInstanceId);
    REQUIRE_POINTER(id);
    DEVICE(device);
    REQUIRE(gpu.is_mig, no_instance_id(&gpu));
    *id = gpu.instance.compute_instance;
    RETURN(NVML_SUCCESS);
}

/* ---- attributes (§7.8) -------------------------------------------------------------------------------- */

static nvml_code describe(const struct gpu *gpu, nvml_device_attributes *attributes)
{
    struct parts parts;
    if (!gpu->is_mig)
        return NVML_NOT_SUPPORTED;
    if (!look_into(gpu, &parts))
        return NVML_INVALID_ARGUMENT;
    *attributes = (nvml_device_attributes){
        .multiprocessors = compute_multiprocessors(gpu, parts.profile, parts.compute->size),
        .copy_engines = parts.profile->copy_engines,
        .decoders = parts.profile->decoders,
        .encoders = parts.profile->encoders,
        .jpeg_engines = parts.profile->jpeg_engines,
        .ofa_engines = parts.profile->ofa_engines,
        .gpu_instance_slices = parts.profile->slices,
        .compute_instance_slices = parts.compute->size,
        .memory_mib = parts.profile->memory_mib,
    };
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlDeviceGetAttributes_v2(nvml_device device, nvml_device_attributes *attributes)
{
    CALL(nvmlDeviceGetAttributes_v2);
    REQUIRE_POINTER(attributes);
    DEVICE(device);
    RETURN(describe(&gpu, attributes));
}

EXPORT nvml_code nvmlDeviceGetAttributes(nvml_device device, nvml_device_attributes_v1 *attributes)
{
    nvml_device_attributes now;
    CALL(nvmlDeviceGetAttributes);
    REQUIRE_POINTER(attributes);
    DEVICE(device);
    REQUIRE_OK(describe(&gpu, &now));
    memcpy(attributes, &now, sizeof *attributes); /* the leading fields */
    RETURN(NVML_SUCCESS);
}
ALIAS(nvmlDeviceGetAttributes_v1, nvmlDeviceGetAttributes);
