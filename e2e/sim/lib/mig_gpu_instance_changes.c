// SPDX-License-Identifier: Apache-2.0

/* GPU instances are created and destroyed (nvml-simulator.md §6.4, §7.3, §7.4). What fits is in mig_gpu_instances.c. */
#include "mig.h"

/* Instances are numbered by size and place: the whole GPU is 0, halves begin at 1, quarters at 3, eighths at 7. */
static unsigned id_of(const struct gpu *gpu, const struct sim_mig_profile *profile, unsigned start)
{
    unsigned pieces = gpu->spec->mig_memory_slices / profile->placement_size, place = start / profile->placement_size;
    if (pieces == 2 && description()->mig_reversed_halves)
        place = 1 - place;
    return pieces - 1 + place;
}

static bool is_possible(const struct sim_mig_profile *profile, const nvml_placement *placement)
{
    for (unsigned i = 0; i < profile->placement_count; i++)
        if (profile->placement_starts[i] == placement->start && profile->placement_size == placement->size)
            return true;
    return false;
}

/* The first place in the order of the table, or the wanted one; false: it is taken, or a limit is reached. */
static bool find_place(const struct gpu *gpu, const struct sim_mig_profile *profile, const nvml_placement *wanted,
                       const struct sim_gpu_instance *records, unsigned *start)
{
    for (unsigned i = 0; i < profile->placement_count; i++) {
        *start = profile->placement_starts[i];
        if ((wanted == NULL || wanted->start == *start) && fits(gpu, profile, *start, records))
            return true;
    }
    return false;
}

static nvml_code create(const struct gpu *gpu, unsigned profile_id, const nvml_placement *wanted, void **made)
{
    struct mig_change change;
    unsigned start;
    const struct sim_mig_profile *profile = profile_by_id(gpu, profile_id);
    nvml_code code = mig_change_begin(&change, gpu);
    if (code != NVML_SUCCESS)
        return code;
    if (profile == NULL || (wanted != NULL && !is_possible(profile, wanted)))
        return mig_change_end(&change, NVML_INVALID_ARGUMENT);
    if (!find_place(gpu, profile, wanted, change.tables->instances, &start))
        return mig_change_end(&change, NVML_INSUFFICIENT_RESOURCES);
    unsigned id = id_of(gpu, profile, start);
    uint64_t incarnation = ++change.state->instances_made;
    change.tables->instances[id] = (struct sim_gpu_instance){.in_use = 1,
                                                             .profile = profile->id,
                                                             .start = start,
                                                             .size = profile->placement_size,
                                                             .incarnation = incarnation};
    code = mig_change_end(&change, NVML_SUCCESS);
    if (code == NVML_SUCCESS)
        *made = handle_of_gpu_instance(gpu->number, id, incarnation);
    return code;
}

EXPORT nvml_code nvmlDeviceCreateGpuInstance(nvml_device device, unsigned id, void **made)
{
    CALL(nvmlDeviceCreateGpuInstance);
    REQUIRE_POINTER(made);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
    RETURN(create(&gpu, id, NULL, made));
}

EXPORT nvml_code nvmlDeviceCreateGpuInstanceWithPlacement(
    nvml_device device, unsigned id, const nvml_placement *placement, void **made)
{
    CALL(nvmlDeviceCreateGpuInstanceWithPlacement);
    REQUIRE(placement != NULL && made != NULL, NVML_INVALID_ARGUMENT);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
    RETURN(create(&gpu, id, placement, made));
}

static bool is_empty(const struct sim_gpu_instance *record)
{
    for (unsigned i = 0; i < SIM_MAX_COMPUTE_INSTANCES; i++)
        if (record->compute[i].in_use)
            return false;
    return true;
}

static nvml_code destroy(const struct gpu *gpu, const struct instance *instance)
{
    struct mig_change change;
    nvml_code code = mig_change_begin(&change, gpu);
    if (code != NVML_SUCCESS)
        return code;
    struct sim_gpu_instance *record = &change.tables->instances[instance->gpu_instance];
    if (!instance_is_in(instance, record))
        return mig_change_end(&change, NVML_INVALID_ARGUMENT);
    if (!is_empty(record) || is_used(change.tables, instance->gpu_instance) ||
        has_contexts_in(gpu->number, instance->gpu_instance))
        return mig_change_end(&change, NVML_IN_USE);
    *record = (struct sim_gpu_instance){0};
    return mig_change_end(&change, NVML_SUCCESS);
}

EXPORT nvml_code nvmlGpuInstanceDestroy(void *handle)
{
    CALL(nvmlGpuInstanceDestroy);
    GPU_INSTANCE_OF(handle);
    REQUIRE_OK(call_needs_privilege());
    RETURN(destroy(&gpu, &instance));
}
