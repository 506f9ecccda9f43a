// SPDX-License-Identifier: Apache-2.0

/* The MIG profiles and instances of one GPU, as nvidia-smi mig lists and changes them. One that is destroyed meanwhile
   is not among them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mig_command.h"

unsigned number_of(nvml_device gpu)
{
    unsigned number = 0;
    nvml.DeviceGetIndex(gpu, &number);
    return number;
}

int not_found(const char *what)
{
    printf("No %s found: %s\n", what, nvml.ErrorString(NVML_NOT_FOUND));
    return exit_code_of(NVML_NOT_FOUND);
}

static bool is_listed(const char *list, unsigned number)
{
    if (list == NULL)
        return true;
    for (const char *word = list; *word != '\0';) {
        char *end;
        if (strtoul(word, &end, 10) == number && end != word && (*end == ',' || *end == '\0'))
            return true;
        word += strcspn(word, ",");
        word += *word == ',';
    }
    return false;
}

unsigned profiles_of(nvml_device gpu, nvml_gi_profile_v2 found[MAX_PROFILES])
{
    unsigned count = 0;
    for (unsigned i = 0; i < NVML_GI_PROFILE_COUNT && count < MAX_PROFILES; i++) {
        found[count].version = NVML_VERSION_WORD(nvml_gi_profile_v2, 2);
        count += nvml.DeviceGetGpuInstanceProfileInfoV(gpu, i, &found[count]) == NVML_SUCCESS;
    }
    return count;
}

unsigned gpu_instances_of(nvml_device gpu, const char *list, struct gpu_instance found[MAX_INSTANCES])
{
    nvml_gi_profile_v2 profiles[MAX_PROFILES];
    unsigned profile_count = profiles_of(gpu, profiles), count = 0;
    for (unsigned p = 0; p < profile_count; p++) {
        void *handles[MAX_INSTANCES];
        unsigned present = 0;
        if (nvml.DeviceGetGpuInstances(gpu, profiles[p].id, handles, &present) != NVML_SUCCESS)
            continue;
        for (unsigned i = 0; i < present && count < MAX_INSTANCES; i++) {
            found[count] = (struct gpu_instance){.handle = handles[i], .profile = profiles[p]};
            nvml_code code = nvml.GpuInstanceGetInfo(handles[i], &found[count].info);
            count += code == NVML_SUCCESS && is_listed(list, found[count].info.id);
        }
    }
    return count;
}

unsigned compute_profiles_of(const struct gpu_instance *of, nvml_ci_profile_v2 found[MAX_PROFILES])
{
    unsigned count = 0;
    for (unsigned i = 0; i < NVML_CI_PROFILE_COUNT && count < MAX_PROFILES; i++) {
        found[count].version = NVML_VERSION_WORD(nvml_ci_profile_v2, 2);
        nvml_code code = nvml.GpuInstanceGetComputeInstanceProfileInfoV(of->handle, i, 0, &found[count]);
        count += code == NVML_SUCCESS;
    }
    return count;
}

unsigned compute_instances_of(
    const struct gpu_instance *of, const char *list, struct compute_instance found[MAX_INSTANCES])
{
    nvml_ci_profile_v2 profiles[MAX_PROFILES];
    unsigned profile_count = compute_profiles_of(of, profiles), count = 0;
    for (unsigned p = 0; p < profile_count; p++) {
        void *handles[MAX_INSTANCES];
        unsigned present = 0;
        nvml_code code = nvml.GpuInstanceGetComputeInstances(of->handle, profiles[p].profile.id, handles, &present);
        for (unsigned i = 0; code == NVML_SUCCESS && i < present && count < MAX_INSTANCES; i++) {
            found[count] = (struct compute_instance){.handle = handles[i], .profile = profiles[p]};
            bool is_there = nvml.ComputeInstanceGetInfo(handles[i], &found[count].info) == NVML_SUCCESS;
            count += is_there && is_listed(list, found[count].info.id);
        }
    }
    return count;
}
