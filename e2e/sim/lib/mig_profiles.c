// SPDX-License-Identifier: Apache-2.0

/*
 * What can be asked about MIG without any instance: the static table of profiles (nvml-simulator.md §6.4, §7.1),
 * which answers regardless of the mode.
 */
#include "mig.h"

/* ---- the table of profiles ---------------------------------------------------------------------------- */

static const struct sim_mig_profile *by_enumerator(const struct gpu *gpu, unsigned enumerator)
{
    for (unsigned i = 0; i < gpu->spec->mig_profile_count; i++)
        if (gpu->spec->mig_profiles[i].enumerator == enumerator)
            return &gpu->spec->mig_profiles[i];
    return NULL;
}

const struct sim_mig_profile *profile_by_id(const struct gpu *gpu, unsigned id)
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
    info->version = 0; /* the driver overwrites the caller's word */
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
    RETURN(answer_versioned(profile_by_id(&gpu, id), info));
}

/* `count` says how many fit into the array: 0 means enough (nvml-simulator.md §6.4). */
EXPORT nvml_code nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    nvml_device device, unsigned id, nvml_placement *placements, unsigned *count)
{
    CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2);
    REQUIRE_POINTER(count);
    GPU(device);
    PRIVILEGED_QUERY();
    const struct sim_mig_profile *profile = profile_by_id(&gpu, id);
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
