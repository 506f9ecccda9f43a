/*
 * What can be asked about MIG without any instance: whether it is on, and the static table of profiles (spec §6.4,
 * §7.1), which answers regardless of the mode. Instances have no life yet, so no handle here is a MIG device.
 */
#include "sim.h"

static bool has_mig(const struct gpu *gpu)
{
    return gpu->spec->mig_profile_count > 0;
}

EXPORT nvml_code nvmlDeviceGetMigMode(nvml_device device, unsigned *current, unsigned *pending)
{
    CALL(nvmlDeviceGetMigMode);
    REQUIRE_POINTER(current);
    REQUIRE_POINTER(pending);
    GPU(device);
    REQUIRE(has_mig(&gpu), NVML_NOT_SUPPORTED);
    *current = gpu.now.mig_mode;
    *pending = gpu.now.mig_pending;
    RETURN(NVML_SUCCESS);
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
    CALL(nvmlDeviceGetMigDeviceHandleByIndex);
    REQUIRE_POINTER(mig);
    GPU(device);
    if (!gpu.now.mig_mode)
        RETURN(description()->mig_not_supported_when_off ? NVML_NOT_SUPPORTED : NVML_NOT_FOUND);
    RETURN(index < gpu.spec->mig_compute_slices ? NVML_NOT_FOUND : NVML_INVALID_ARGUMENT);
}

EXPORT nvml_code nvmlDeviceIsMigDeviceHandle(nvml_device device, unsigned *is_mig)
{
    CALL(nvmlDeviceIsMigDeviceHandle);
    REQUIRE_POINTER(is_mig);
    GPU(device);
    *is_mig = 0;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_device mig, nvml_device *device)
{
    CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    REQUIRE_POINTER(device);
    GPU(mig);
    RETURN(NVML_INVALID_ARGUMENT);
}

/* Questions to a MIG device that a GPU has no answer to. */
#define NOT_FOR_A_GPU(name, type)                     \
    EXPORT nvml_code name(nvml_device device, type *out) \
    {                                                 \
        CALL(name);                                   \
        REQUIRE_POINTER(out);                         \
        GPU(device);                                  \
        RETURN(NVML_NOT_SUPPORTED);                   \
    }
NOT_FOR_A_GPU(nvmlDeviceGetGpuInstanceId, unsigned)
NOT_FOR_A_GPU(nvmlDeviceGetComputeInstanceId, unsigned)
NOT_FOR_A_GPU(nvmlDeviceGetAttributes, void)
NOT_FOR_A_GPU(nvmlDeviceGetAttributes_v2, nvml_device_attributes)
ALIAS(nvmlDeviceGetAttributes_v1, nvmlDeviceGetAttributes);

/* ---- the table of profiles ---------------------------------------------------------------------------- */

static const struct sim_mig_profile *by_enumerator(const struct gpu *gpu, unsigned enumerator)
{
    for (unsigned i = 0; i < gpu->spec->mig_profile_count; i++)
        if (gpu->spec->mig_profiles[i].enumerator == enumerator)
            return &gpu->spec->mig_profiles[i];
    return NULL;
}

static const struct sim_mig_profile *by_id(const struct gpu *gpu, unsigned id)
{
    for (unsigned i = 0; i < gpu->spec->mig_profile_count; i++)
        if (gpu->spec->mig_profiles[i].id == id)
            return &gpu->spec->mig_profiles[i];
    return NULL;
}

/* The fields that every version has, under the names they share. */
#define DESCRIBE(profile, info)                          \
    do {                                                 \
        (info)->id = (profile)->id;                      \
        (info)->slices = (profile)->slices;              \
        (info)->instances = (profile)->max_instances;    \
        (info)->multiprocessors = (profile)->sms;        \
        (info)->copy_engines = (profile)->copy_engines;  \
        (info)->decoders = (profile)->decoders;          \
        (info)->encoders = (profile)->encoders;          \
        (info)->jpeg_engines = (profile)->jpeg_engines;  \
        (info)->ofa_engines = (profile)->ofa_engines;    \
        (info)->memory_mib = (profile)->memory_mib;      \
    } while (0)

enum { CAPABILITY_P2P = 1 };

EXPORT nvml_code nvmlDeviceGetGpuInstanceProfileInfo(nvml_device device, unsigned enumerator, nvml_gi_profile *info)
{
    CALL(nvmlDeviceGetGpuInstanceProfileInfo);
    REQUIRE_POINTER(info);
    REQUIRE(enumerator < NVML_GI_PROFILE_COUNT, NVML_INVALID_ARGUMENT);
    GPU(device);
    const struct sim_mig_profile *profile = by_enumerator(&gpu, enumerator);
    REQUIRE(profile != NULL, NVML_NOT_SUPPORTED);
    DESCRIBE(profile, info);
    info->p2p = profile->capabilities & CAPABILITY_P2P;
    RETURN(NVML_SUCCESS);
}

/* The second and third version have the same size; the version word alone tells them apart. */
union versioned_profile {
    uint32_t version;
    nvml_gi_profile_v2 v2;
    nvml_gi_profile_v3 v3;
};

static bool is_second(const union versioned_profile *info)
{
    return info->version == NVML_VERSION_WORD(nvml_gi_profile_v2, 2);
}

static bool is_third(const union versioned_profile *info)
{
    return info->version == NVML_VERSION_WORD(nvml_gi_profile_v3, 3);
}

static nvml_code answer_versioned(const struct sim_mig_profile *profile, union versioned_profile *info)
{
    if (profile == NULL)
        return NVML_NOT_SUPPORTED;
    if (is_second(info)) {
        DESCRIBE(profile, &info->v2);
        info->v2.p2p = profile->capabilities & CAPABILITY_P2P;
        memcpy(info->v2.name, profile->name, sizeof info->v2.name);
    } else {
        DESCRIBE(profile, &info->v3);
        memcpy(info->v3.name, profile->name, sizeof info->v3.name);
        info->v3.capabilities = profile->capabilities;
    }
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlDeviceGetGpuInstanceProfileInfoV(
    nvml_device device, unsigned enumerator, union versioned_profile *info)
{
    CALL(nvmlDeviceGetGpuInstanceProfileInfoV);
    REQUIRE_POINTER(info);
    REQUIRE(enumerator < NVML_GI_PROFILE_COUNT, NVML_INVALID_ARGUMENT);
    REQUIRE(is_second(info) || is_third(info), NVML_VERSION_MISMATCH);
    GPU(device);
    RETURN(answer_versioned(by_enumerator(&gpu, enumerator), info));
}

EXPORT nvml_code nvmlDeviceGetGpuInstanceProfileInfoByIdV(
    nvml_device device, unsigned id, union versioned_profile *info)
{
    CALL(nvmlDeviceGetGpuInstanceProfileInfoByIdV);
    REQUIRE_POINTER(info);
    REQUIRE(is_second(info) || is_third(info), NVML_VERSION_MISMATCH);
    GPU(device);
    RETURN(answer_versioned(by_id(&gpu, id), info));
}

/* `count` says how many fit into the array: 0 means enough (spec §6.4). */
EXPORT nvml_code nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    nvml_device device, unsigned id, nvml_placement *placements, unsigned *count)
{
    CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2);
    REQUIRE_POINTER(count);
    GPU(device);
    if (description()->privileged_queries)
        REQUIRE_OK(call_needs_privilege());
    const struct sim_mig_profile *profile = by_id(&gpu, id);
    REQUIRE(profile != NULL, NVML_NOT_SUPPORTED);
    unsigned room = *count;
    *count = profile->placement_count;
    if (placements == NULL)
        RETURN(NVML_SUCCESS);
    REQUIRE(room == 0 || room >= profile->placement_count, NVML_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < profile->placement_count; i++)
        placements[i] = (nvml_placement){profile->placement_starts[i], profile->placement_size};
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetGpuInstancePossiblePlacements(
    nvml_device device, unsigned id, nvml_placement *placements, unsigned *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}
ALIAS(nvmlDeviceGetGpuInstancePossiblePlacements_v1, nvmlDeviceGetGpuInstancePossiblePlacements);
