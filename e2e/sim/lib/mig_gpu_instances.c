// SPDX-License-Identifier: Apache-2.0

/* GPU instances (nvml-simulator.md §6.4, §7.3): which exist, and what more would fit. With MIG mode off, none exist and
   all would fit. Their profiles are in mig_profiles.c. */
#include "mig.h"

/* ---- GPU instances ------------------------------------------------------------------------------------ */

void *handle_of_gpu_instance(unsigned gpu, unsigned id, uint64_t incarnation)
{
    return instance_handle(&(struct instance){GPU_INSTANCE, gpu, id, 0, incarnation});
}

EXPORT nvml_code nvmlDeviceGetGpuInstances(nvml_device device, unsigned id, void **found, unsigned *count)
{
    struct sim_gpu_instance records[SIM_MAX_GPU_INSTANCES];
    CALL(nvmlDeviceGetGpuInstances);
    REQUIRE(found != NULL && count != NULL, NVML_INVALID_ARGUMENT);
    GPU(device);
    PRIVILEGED_QUERY();
    REQUIRE(can_do_mig(&gpu), NVML_NOT_SUPPORTED);
    REQUIRE(profile_by_id(&gpu, id) != NULL, NVML_INVALID_ARGUMENT);
    read_gpu_instances(gpu.number, records);
    *count = 0;
    for (unsigned i = 0; i < SIM_MAX_GPU_INSTANCES; i++) {
        if (!records[i].in_use || records[i].profile != id)
            continue;
        found[*count] = handle_of_gpu_instance(gpu.number, i, records[i].incarnation);
        ++*count;
    }
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetGpuInstanceById(nvml_device device, unsigned id, void **found)
{
    CALL(nvmlDeviceGetGpuInstanceById);
    REQUIRE_POINTER(found);
    GPU(device);
    PRIVILEGED_QUERY();
    REQUIRE(can_do_mig(&gpu), NVML_NOT_SUPPORTED);
    REQUIRE(id < SIM_MAX_GPU_INSTANCES, NVML_NOT_FOUND);
    struct sim_gpu_instance record = read_gpu_instance(gpu.number, id);
    REQUIRE(record.in_use, NVML_NOT_FOUND);
    *found = handle_of_gpu_instance(gpu.number, id, record.incarnation);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlGpuInstanceGetInfo(void *handle, nvml_gi_info *info)
{
    CALL(nvmlGpuInstanceGetInfo);
    REQUIRE_POINTER(info);
    GPU_INSTANCE_OF(handle);
    *info = (nvml_gi_info){handle_of(gpu.number), instance.gpu_instance, record.profile, {record.start, record.size}};
    RETURN(NVML_SUCCESS);
}

/* ---- room for more GPU instances (§7.3) --------------------------------------------------------------- */

struct use {
    unsigned same, slices, decoders, encoders, jpeg_engines, ofa_engines;
};

static void add(struct use *use, const struct sim_mig_profile *profile)
{
    use->slices += profile->slices;
    use->decoders += profile->decoders;
    use->encoders += profile->encoders;
    use->jpeg_engines += profile->jpeg_engines;
    use->ofa_engines += profile->ofa_engines;
}

/* The profile that is the whole GPU: it has every engine. */
static const struct sim_mig_profile *whole(const struct gpu *gpu)
{
    const struct sim_mig_profile *largest = &gpu->spec->mig_profiles[0];
    for (unsigned i = 1; i < gpu->spec->mig_profile_count; i++)
        if (gpu->spec->mig_profiles[i].slices > largest->slices)
            largest = &gpu->spec->mig_profiles[i];
    return largest;
}

bool fits(const struct gpu *gpu, const struct sim_mig_profile *profile, unsigned start,
          const struct sim_gpu_instance *records)
{
    struct use use = {0};
    const struct sim_mig_profile *all = whole(gpu);
    add(&use, profile);
    for (unsigned i = 0; i < SIM_MAX_GPU_INSTANCES; i++) {
        if (!records[i].in_use)
            continue;
        if (start < records[i].start + records[i].size && records[i].start < start + profile->placement_size)
            return false;
        use.same += records[i].profile == profile->id;
        add(&use, profile_by_id(gpu, records[i].profile));
    }
    return use.same < profile->max_instances && use.slices <= gpu->spec->mig_compute_slices &&
           use.decoders <= all->decoders && use.encoders <= all->encoders &&
           use.jpeg_engines <= all->jpeg_engines && use.ofa_engines <= all->ofa_engines;
}

/* Puts a GPU instance into a free record, to see what fits beside it. */
static void imagine(struct sim_gpu_instance *records, const struct sim_mig_profile *profile, unsigned start)
{
    for (unsigned i = 0; i < SIM_MAX_GPU_INSTANCES; i++) {
        if (records[i].in_use)
            continue;
        records[i] = (struct sim_gpu_instance){
            .in_use = 1, .profile = profile->id, .start = start, .size = profile->placement_size};
        return;
    }
}

EXPORT nvml_code nvmlDeviceGetGpuInstanceRemainingCapacity(nvml_device device, unsigned id, unsigned *count)
{
    struct sim_gpu_instance records[SIM_MAX_GPU_INSTANCES];
    CALL(nvmlDeviceGetGpuInstanceRemainingCapacity);
    REQUIRE_POINTER(count);
    GPU(device);
    PRIVILEGED_QUERY();
    REQUIRE(can_do_mig(&gpu), NVML_NOT_SUPPORTED);
    const struct sim_mig_profile *profile = profile_by_id(&gpu, id);
    REQUIRE(profile != NULL, NVML_INVALID_ARGUMENT);
    read_gpu_instances(gpu.number, records);
    *count = 0;
    for (unsigned i = 0; i < profile->placement_count; i++) {
        if (!fits(&gpu, profile, profile->placement_starts[i], records))
            continue;
        imagine(records, profile, profile->placement_starts[i]);
        ++*count;
    }
    RETURN(NVML_SUCCESS);
}
