// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi mig: makes and destroys GPU instances and compute instances, until one fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mig_command.h"

static int failed_to(const char *what, nvml_code code)
{
    printf("Failed to %s: %s\n", what, nvml.ErrorString(code));
    return exit_code_of(code);
}

/* One word of a list: its text up to a comma, and up to a colon the profile. Returns the next word. */
static const char *next_word(const char *list, char word[TEXT], const char **place)
{
    size_t length = strcspn(list, ",");
    snprintf(word, TEXT, "%.*s", (int)length, list);
    char *colon = strchr(word, ':');
    if (colon != NULL)
        *colon = '\0';
    *place = colon == NULL ? NULL : colon + 1;
    return list + length + (list[length] == ',');
}

/* A profile by its id, or by its name with "MIG " or without. */
static bool is_called(const char *word, unsigned id, const char *name)
{
    char *end;
    unsigned long number = strtoul(word, &end, 10);
    if (end != word && *end == '\0')
        return number == id;
    return strcmp(word, name) == 0 || (strncmp(name, "MIG ", 4) == 0 && strcmp(word, name + 4) == 0);
}

/* ---- making ------------------------------------------------------------------------------------------- */

static int make_compute(nvml_device gpu, const struct gpu_instance *in, const nvml_ci_profile_v2 *profile)
{
    void *made;
    nvml_ci_info info;
    nvml_code code = nvml.GpuInstanceCreateComputeInstance(in->handle, profile->profile.id, &made);
    if (code == NVML_SUCCESS)
        code = nvml.ComputeInstanceGetInfo(made, &info);
    if (code != NVML_SUCCESS) {
        printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %u: %s\n",
               number_of(gpu), in->info.id, profile->profile.id, nvml.ErrorString(code));
        return failed_to("create compute instances", code);
    }
    printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n",
           info.id, number_of(gpu), in->info.id, profile->name, profile->profile.id);
    return EXIT_SUCCESS;
}

/* The compute instance that covers a GPU instance. */
static int fill(nvml_device gpu, const struct gpu_instance *in)
{
    nvml_ci_profile_v2 profiles[MAX_PROFILES];
    unsigned count = compute_profiles_of(in, profiles);
    for (unsigned i = 0; i < count; i++)
        if (profiles[i].profile.slices == in->profile.slices)
            return make_compute(gpu, in, &profiles[i]);
    return not_found("compute instance profiles");
}

static int make_one(nvml_device gpu, const nvml_gi_profile_v2 *profile, const char *place, bool fills)
{
    struct gpu_instance made = {.profile = *profile};
    nvml_placement wanted = {.start = place == NULL ? 0 : (unsigned)strtoul(place, NULL, 10)};
    nvml_placement places[MAX_INSTANCES];
    unsigned count = MAX_INSTANCES;
    nvml_code code = NVML_SUCCESS;
    if (place != NULL) {
        code = nvml.DeviceGetGpuInstancePossiblePlacements(gpu, profile->id, places, &count);
        wanted.size = code == NVML_SUCCESS && count > 0 ? places[0].size : 0;
    }
    if (code == NVML_SUCCESS)
        code = place == NULL ? nvml.DeviceCreateGpuInstance(gpu, profile->id, &made.handle)
                             : nvml.DeviceCreateGpuInstanceWithPlacement(gpu, profile->id, &wanted, &made.handle);
    if (code == NVML_SUCCESS)
        code = nvml.GpuInstanceGetInfo(made.handle, &made.info);
    if (code != NVML_SUCCESS) {
        printf("Unable to create a GPU instance on GPU %2u using profile %u: %s\n", number_of(gpu), profile->id,
               nvml.ErrorString(code));
        return failed_to("create GPU instances", code);
    }
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", made.info.id,
           number_of(gpu), profile->name, profile->id);
    return fills ? fill(gpu, &made) : EXIT_SUCCESS;
}

int mig_create(const struct mig_options *options, const struct devices *gpus)
{
    for (unsigned i = 0; i < gpus->count; i++) {
        nvml_gi_profile_v2 profiles[MAX_PROFILES];
        unsigned count = profiles_of(gpus->device[i], profiles), p;
        for (const char *list = options->profiles; *list != '\0';) {
            char word[TEXT];
            const char *place;
            list = next_word(list, word, &place);
            for (p = 0; p < count && !is_called(word, profiles[p].id, profiles[p].name); p++)
                ;
            if (p == count)
                return bad_argument("\"%s\" is not a GPU instance profile; see nvidia-smi mig -lgip.\n", word);
            int failed = make_one(gpus->device[i], &profiles[p], place, options->fills);
            if (failed != 0)
                return failed;
        }
    }
    return EXIT_SUCCESS;
}

static int cut(const struct mig_options *options, nvml_device gpu, const struct gpu_instance *in)
{
    nvml_ci_profile_v2 profiles[MAX_PROFILES];
    unsigned count = compute_profiles_of(in, profiles), p;
    if (options->profiles == NULL)
        return fill(gpu, in);
    for (const char *list = options->profiles; *list != '\0';) {
        char word[TEXT];
        const char *place;
        list = next_word(list, word, &place);
        for (p = 0; p < count && !is_called(word, profiles[p].profile.id, profiles[p].name); p++)
            ;
        if (p == count)
            return bad_argument("\"%s\" is not a compute instance profile; see nvidia-smi mig -lcip.\n", word);
        int failed = make_compute(gpu, in, &profiles[p]);
        if (failed != 0)
            return failed;
    }
    return EXIT_SUCCESS;
}

int mig_create_compute(const struct mig_options *options, const struct devices *gpus)
{
    unsigned chosen = 0;
    for (unsigned i = 0; i < gpus->count; i++) {
        struct gpu_instance found[MAX_INSTANCES];
        unsigned count = gpu_instances_of(gpus->device[i], options->instances, found);
        for (unsigned k = 0; k < count; k++) {
            chosen++;
            int failed = cut(options, gpus->device[i], &found[k]);
            if (failed != 0)
                return failed;
        }
    }
    return chosen == 0 ? not_found("GPU instances") : EXIT_SUCCESS;
}

/* ---- destroying --------------------------------------------------------------------------------------- */

int mig_destroy(const struct mig_options *options, const struct devices *gpus)
{
    unsigned chosen = 0;
    for (unsigned i = 0; i < gpus->count; i++) {
        struct gpu_instance found[MAX_INSTANCES];
        unsigned count = gpu_instances_of(gpus->device[i], options->instances, found);
        unsigned number = number_of(gpus->device[i]);
        for (unsigned k = 0; k < count; k++) {
            chosen++;
            nvml_code code = nvml.GpuInstanceDestroy(found[k].handle);
            if (code != NVML_SUCCESS) {
                printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", found[k].info.id, number,
                       nvml.ErrorString(code));
                return failed_to("destroy GPU instances", code);
            }
            printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", found[k].info.id, number);
        }
    }
    return chosen == 0 ? not_found("GPU instances") : EXIT_SUCCESS;
}

int mig_destroy_compute(const struct mig_options *options, const struct devices *gpus)
{
    unsigned chosen = 0;
    for (unsigned i = 0; i < gpus->count; i++) {
        struct gpu_instance found[MAX_INSTANCES];
        unsigned count = gpu_instances_of(gpus->device[i], options->instances, found);
        unsigned number = number_of(gpus->device[i]);
        for (unsigned k = 0; k < count; k++) {
            struct compute_instance computes[MAX_INSTANCES];
            unsigned compute_count = compute_instances_of(&found[k], options->computes, computes);
            unsigned id = found[k].info.id;
            for (unsigned c = 0; c < compute_count; c++) {
                chosen++;
                nvml_code code = nvml.ComputeInstanceDestroy(computes[c].handle);
                if (code != NVML_SUCCESS) {
                    printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n",
                           computes[c].info.id, number, id, nvml.ErrorString(code));
                    return failed_to("destroy compute instances", code);
                }
                printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n",
                       computes[c].info.id, number, id);
            }
        }
    }
    return chosen == 0 ? not_found("compute instances") : EXIT_SUCCESS;
}
