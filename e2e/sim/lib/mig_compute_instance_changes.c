// SPDX-License-Identifier: Apache-2.0

/* Compute instances are created and destroyed (nvml-simulator.md §6.4, §7.5, §7.6). How a GPU instance can be cut is in
   mig_compute_instances.c. */
#include <stdio.h>

#include "mig.h"

/* The bytes of "GPU-<uuid>". */
static void bytes_of(const char *gpu_uuid, uint8_t uuid[16])
{
    unsigned digits = 0, value;
    for (const char *at = strchr(gpu_uuid, '-'); at != NULL && *at != '\0' && digits < 16; at += *at == '-' ? 1 : 2)
        if (*at != '-' && sscanf(at, "%2x", &value) == 1)
            uuid[digits++] = (uint8_t)value;
}

static void name_device(const struct gpu *gpu, unsigned gpu_instance, unsigned id, struct sim_compute_instance *record)
{
    uint8_t parent[16] = {0};
    char name[39];
    int length = snprintf(name, sizeof name, "%u/%u", gpu_instance, id);
    if (description()->mig_fresh_uuids)
        snprintf(name + length, sizeof name - (size_t)length, "/%llu", (unsigned long long)record->incarnation);
    bytes_of(gpu->spec->uuid, parent);
    uuid5(parent, name, record->uuid);
}

/* The first free place, or the wanted one; false: it is taken. */
static bool find_place(const struct sim_mig_profile *of, const struct compute_profile *profile,
                       const nvml_placement *wanted, const struct sim_gpu_instance *record, unsigned *start)
{
    unsigned starts[SIM_MAX_COMPUTE_INSTANCES], places = compute_starts(profile->slices, of->slices, starts);
    for (unsigned i = 0; i < places; i++) {
        *start = starts[i];
        if ((wanted == NULL || wanted->start == *start) && is_free(record, *start, profile->slices))
            return true;
    }
    return false;
}

static bool is_possible(const struct sim_mig_profile *of, const struct compute_profile *profile,
                        const nvml_placement *placement)
{
    unsigned starts[SIM_MAX_COMPUTE_INSTANCES], places = compute_starts(profile->slices, of->slices, starts);
    for (unsigned i = 0; i < places; i++)
        if (starts[i] == placement->start && profile->slices == placement->size)
            return true;
    return false;
}

static unsigned lowest_free_id(const struct sim_gpu_instance *record)
{
    unsigned id = 0;
    while (record->compute[id].in_use) /* not all are: a place was free */
        id++;
    return id;
}

static nvml_code create(const struct gpu *gpu, const struct instance *in, const struct sim_mig_profile *of,
                        unsigned profile_id, const nvml_placement *wanted, void **made)
{
    struct mig_change change;
    unsigned start;
    const struct compute_profile *profile = compute_profile(of, profile_id);
    nvml_code code = mig_change_begin(&change, gpu);
    if (code != NVML_SUCCESS)
        return code;
    struct sim_gpu_instance *record = &change.tables->instances[in->gpu_instance];
    if (!instance_is_in(in, record) || profile == NULL || (wanted != NULL && !is_possible(of, profile, wanted)))
        return mig_change_end(&change, NVML_INVALID_ARGUMENT);
    if (!find_place(of, profile, wanted, record, &start))
        return mig_change_end(&change, NVML_INSUFFICIENT_RESOURCES);
    unsigned id = lowest_free_id(record);
    record->compute[id] = (struct sim_compute_instance){.in_use = 1,
                                                        .profile = profile->id,
                                                        .start = start,
                                                        .size = profile->slices,
                                                        .incarnation = ++change.state->instances_made};
    name_device(gpu, in->gpu_instance, id, &record->compute[id]);
    void *handle = handle_of_compute_instance(in, record, id);
    code = mig_change_end(&change, NVML_SUCCESS);
    if (code == NVML_SUCCESS)
        *made = handle;
    return code;
}

EXPORT nvml_code nvmlGpuInstanceCreateComputeInstance(void *handle, unsigned id, void **made)
{
    CALL(nvmlGpuInstanceCreateComputeInstance);
    REQUIRE_POINTER(made);
    GPU_INSTANCE_OF(handle);
    REQUIRE_OK(call_needs_privilege());
    RETURN(create(&gpu, &instance, cut, id, NULL, made));
}

EXPORT nvml_code nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    void *handle, unsigned id, const nvml_placement *placement, void **made)
{
    CALL(nvmlGpuInstanceCreateComputeInstanceWithPlacement);
    REQUIRE(placement != NULL && made != NULL, NVML_INVALID_ARGUMENT);
    GPU_INSTANCE_OF(handle);
    REQUIRE_OK(call_needs_privilege());
    RETURN(create(&gpu, &instance, cut, id, placement, made));
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
    if (is_compute_used(change.tables, instance->gpu_instance, instance->compute_instance) ||
        has_contexts_on(gpu->number, instance->gpu_instance, instance->compute_instance))
        return mig_change_end(&change, NVML_IN_USE);
    record->compute[instance->compute_instance] = (struct sim_compute_instance){0};
    return mig_change_end(&change, NVML_SUCCESS);
}

EXPORT nvml_code nvmlComputeInstanceDestroy(void *handle)
{
    struct instance instance;
    struct sim_gpu_instance record;
    struct gpu gpu;
    CALL(nvmlComputeInstanceDestroy);
    REQUIRE(instance_of(handle, COMPUTE_INSTANCE, &instance) && instance_exists(&instance, &record),
            NVML_INVALID_ARGUMENT);
    REQUIRE_OK(open_gpu(instance.gpu, &call, &gpu));
    REQUIRE_OK(call_needs_privilege());
    RETURN(destroy(&gpu, &instance));
}
