// SPDX-License-Identifier: Apache-2.0

/* Compute instances (nvml-simulator.md §6.4, §7.5): how a GPU instance can be cut, what exists in it, what more would
   fit. */
#include <stdio.h>

#include "mig.h"

/* ---- how a GPU instance can be cut (§7.5) ------------------------------------------------------------- */

enum { REV1 = 7, NVL = 8 };

static const struct compute_profile COMPUTE_PROFILES[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 7}, {REV1, 1}, {NVL, 7}};
enum { COMPUTE_PROFILE_COUNT = sizeof COMPUTE_PROFILES / sizeof *COMPUTE_PROFILES };

static bool is_offered(const struct compute_profile *profile, unsigned slices)
{
    if (profile->id == REV1)
        return slices == 1 && description()->mig_offers_rev1;
    if (profile->id == NVL)
        return slices == 7 && description()->mig_offers_nvl;
    return profile->slices <= slices && !(profile->slices == 3 && slices == 4);
}

const struct compute_profile *compute_profile(const struct sim_mig_profile *of, unsigned id)
{
    for (unsigned i = 0; i < COMPUTE_PROFILE_COUNT; i++)
        if (COMPUTE_PROFILES[i].id == id && is_offered(&COMPUTE_PROFILES[i], of->slices))
            return &COMPUTE_PROFILES[i];
    return NULL;
}

/* 1c anywhere, 2c at 0, 2, 4, the larger ones at 0 and 4. */
unsigned compute_starts(unsigned size, unsigned slices, unsigned starts[SIM_MAX_COMPUTE_INSTANCES])
{
    unsigned step = size > 2 ? 4 : size, count = 0;
    for (unsigned start = 0; start + size <= slices; start += step)
        starts[count++] = start;
    return count;
}

unsigned compute_multiprocessors(const struct gpu *gpu, const struct sim_mig_profile *of, unsigned slices)
{
    if (slices == of->slices)
        return of->sms;
    for (unsigned i = 0; i < gpu->spec->mig_profile_count; i++)
        if (gpu->spec->mig_profiles[i].enumerator == 0)
            return slices * gpu->spec->mig_profiles[i].sms;
    return 0;
}

void compute_name(const struct sim_mig_profile *of, unsigned slices, char name[96])
{
    if (slices == of->slices)
        memcpy(name, of->name, sizeof of->name);
    else
        snprintf(name, 96, "MIG %uc.%.80s", slices, of->name + sizeof "MIG " - 1);
}

static nvml_ci_profile describe(const struct gpu *gpu, const struct sim_mig_profile *of,
                                const struct compute_profile *profile)
{
    unsigned starts[SIM_MAX_COMPUTE_INSTANCES];
    return (nvml_ci_profile){
        .id = profile->id,
        .slices = profile->slices,
        .instances = compute_starts(profile->slices, of->slices, starts),
        .multiprocessors = compute_multiprocessors(gpu, of, profile->slices),
        .copy_engines = of->copy_engines,
        .decoders = of->decoders,
        .encoders = of->encoders,
        .jpeg_engines = of->jpeg_engines,
        .ofa_engines = of->ofa_engines,
    };
}

EXPORT nvml_code nvmlGpuInstanceGetComputeInstanceProfileInfo(
    void *handle, unsigned enumerator, unsigned engine, nvml_ci_profile *info)
{
    CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo);
    REQUIRE_POINTER(info);
    REQUIRE(enumerator < NVML_CI_PROFILE_COUNT && engine < NVML_CI_ENGINE_COUNT, NVML_INVALID_ARGUMENT);
    GPU_INSTANCE_OF(handle);
    const struct compute_profile *profile = compute_profile(cut, enumerator);
    REQUIRE(profile != NULL, NVML_NOT_SUPPORTED);
    *info = describe(&gpu, cut, profile);
    RETURN(NVML_SUCCESS);
}

enum { CAPABILITY_GRAPHICS = 2, COMPUTE_CAPABILITY_GRAPHICS = 1 };

/* The third version is longer by its last field. */
EXPORT nvml_code nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    void *handle, unsigned enumerator, unsigned engine, nvml_ci_profile_v3 *info)
{
    CALL(nvmlGpuInstanceGetComputeInstanceProfileInfoV);
    REQUIRE_POINTER(info);
    REQUIRE(enumerator < NVML_CI_PROFILE_COUNT && engine < NVML_CI_ENGINE_COUNT, NVML_INVALID_ARGUMENT);
    bool third = info->v2.version == NVML_VERSION_WORD(nvml_ci_profile_v3, 3);
    REQUIRE(third || info->v2.version == NVML_VERSION_WORD(nvml_ci_profile_v2, 2), NVML_VERSION_MISMATCH);
    GPU_INSTANCE_OF(handle);
    const struct compute_profile *profile = compute_profile(cut, enumerator);
    REQUIRE(profile != NULL, NVML_NOT_SUPPORTED);
    info->v2.profile = describe(&gpu, cut, profile);
    compute_name(cut, profile->slices, info->v2.name);
    if (third)
        info->capabilities = cut->capabilities & CAPABILITY_GRAPHICS ? COMPUTE_CAPABILITY_GRAPHICS : 0;
    RETURN(NVML_SUCCESS);
}

/* `count` says how many fit into the array: 0 means enough, as for GPU instances. */
EXPORT nvml_code nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    void *handle, unsigned id, nvml_placement *placements, unsigned *count)
{
    unsigned starts[SIM_MAX_COMPUTE_INSTANCES];
    CALL(nvmlGpuInstanceGetComputeInstancePossiblePlacements);
    REQUIRE_POINTER(count);
    GPU_INSTANCE_OF(handle);
    PRIVILEGED_QUERY();
    const struct compute_profile *profile = compute_profile(cut, id);
    REQUIRE(profile != NULL, NVML_NOT_SUPPORTED);
    unsigned room = *count;
    *count = compute_starts(profile->slices, cut->slices, starts);
    if (placements == NULL)
        RETURN(NVML_SUCCESS);
    REQUIRE(room == 0 || room >= *count, NVML_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++)
        placements[i] = (nvml_placement){starts[i], profile->slices};
    RETURN(NVML_SUCCESS);
}

/* ---- compute instances -------------------------------------------------------------------------------- */

bool is_free(const struct sim_gpu_instance *record, unsigned start, unsigned size)
{
    for (unsigned i = 0; i < SIM_MAX_COMPUTE_INSTANCES; i++) {
        const struct sim_compute_instance *other = &record->compute[i];
        if (other->in_use && start < other->start + other->size && other->start < start + size)
            return false;
    }
    return true;
}

EXPORT nvml_code nvmlGpuInstanceGetComputeInstanceRemainingCapacity(void *handle, unsigned id, unsigned *count)
{
    unsigned starts[SIM_MAX_COMPUTE_INSTANCES];
    CALL(nvmlGpuInstanceGetComputeInstanceRemainingCapacity);
    REQUIRE_POINTER(count);
    GPU_INSTANCE_OF(handle);
    PRIVILEGED_QUERY();
    const struct compute_profile *profile = compute_profile(cut, id);
    REQUIRE(profile != NULL, NVML_INVALID_ARGUMENT);
    unsigned places = compute_starts(profile->slices, cut->slices, starts);
    *count = 0;
    for (unsigned i = 0; i < places; i++)
        *count += is_free(&record, starts[i], profile->slices);
    RETURN(NVML_SUCCESS);
}

void *handle_of_compute_instance(const struct instance *of, const struct sim_gpu_instance *record, unsigned id)
{
    uint64_t incarnation = record->compute[id].incarnation;
    return instance_handle(
        &(struct instance){COMPUTE_INSTANCE, of->gpu, of->gpu_instance, id, incarnation});
}

EXPORT nvml_code nvmlGpuInstanceGetComputeInstances(void *handle, unsigned id, void **found, unsigned *count)
{
    CALL(nvmlGpuInstanceGetComputeInstances);
    REQUIRE(found != NULL && count != NULL, NVML_INVALID_ARGUMENT);
    GPU_INSTANCE_OF(handle);
    PRIVILEGED_QUERY();
    REQUIRE(compute_profile(cut, id) != NULL, NVML_INVALID_ARGUMENT);
    *count = 0;
    for (unsigned i = 0; i < SIM_MAX_COMPUTE_INSTANCES; i++) {
        if (!record.compute[i].in_use || record.compute[i].profile != id)
            continue;
        found[*count] = handle_of_compute_instance(&instance, &record, i);
        ++*count;
    }
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlGpuInstanceGetComputeInstanceById(void *handle, unsigned id, void **found)
{
    CALL(nvmlGpuInstanceGetComputeInstanceById);
    REQUIRE_POINTER(found);
    GPU_INSTANCE_OF(handle);
    PRIVILEGED_QUERY();
    REQUIRE(id < SIM_MAX_COMPUTE_INSTANCES && record.compute[id].in_use, NVML_NOT_FOUND);
    *found = handle_of_compute_instance(&instance, &record, id);
    RETURN(NVML_SUCCESS);
}

static nvml_code answer_info(struct call *call, void *handle, nvml_ci_info *info)
{
    struct instance instance;
    struct sim_gpu_instance record;
    struct gpu gpu;
    if (!instance_of(handle, COMPUTE_INSTANCE, &instance) || !instance_exists(&instance, &record))
        return NVML_INVALID_ARGUMENT;
    nvml_code code = open_gpu(instance.gpu, call, &gpu);
    if (code != NVML_SUCCESS)
        return code;
    const struct sim_compute_instance *compute = &record.compute[instance.compute_instance];
    struct instance device = instance;
    device.kind = MIG_DEVICE;
    *info = (nvml_ci_info){
        .device = instance_handle(&device),
        .gpu_instance = handle_of_gpu_instance(gpu.number, instance.gpu_instance, record.incarnation),
        .id = instance.compute_instance,
        .profile_id = compute->profile,
        .placement = {compute->start, compute->size},
    };
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlComputeInstanceGetInfo_v2(void *handle, nvml_ci_info *info)
{
    CALL(nvmlComputeInstanceGetInfo_v2);
    REQUIRE_POINTER(info);
    RETURN(answer_info(&call, handle, info));
}

EXPORT nvml_code nvmlComputeInstanceGetInfo(void *handle, nvml_ci_info_v1 *info)
{
    nvml_ci_info now;
    CALL(nvmlComputeInstanceGetInfo);
    REQUIRE_POINTER(info);
    REQUIRE_OK(answer_info(&call, handle, &now));
    memcpy(info, &now, sizeof *info); /* the leading fields */
    RETURN(NVML_SUCCESS);
}
ALIAS(nvmlComputeInstanceGetInfo_v1, nvmlComputeInstanceGetInfo);
