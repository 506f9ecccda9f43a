// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi mig: lists of profiles, of placements, and of instances. */
#include <stdio.h>
#include <stdlib.h>

#include "mig_command.h"

/* A row of a table: its text within borders. */
#define ROW(width, ...)                              \
    do {                                             \
        char row[160];                               \
        snprintf(row, sizeof row, __VA_ARGS__);      \
        printf("|%-*s|\n", width, row);              \
    } while (0)

static void rule(int width, char corner, char line)
{
    putchar(corner);
    for (int i = 0; i < width; i++)
        putchar(line);
    printf("%c\n", corner);
}

static int list_profiles(const struct devices *gpus)
{
    enum { WIDTH = 77 };
    rule(WIDTH, '+', '-');
    ROW(WIDTH, " GPU instance profiles:");
    ROW(WIDTH, " GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC");
    ROW(WIDTH, "                              Free/Total   GiB              CE    JPEG  OFA");
    rule(WIDTH, '|', '=');
    for (unsigned i = 0; i < gpus->count; i++) {
        nvml_gi_profile_v2 profiles[MAX_PROFILES];
        unsigned count = profiles_of(gpus->device[i], profiles), free;
        for (unsigned p = 0; p < count; p++) {
            const nvml_gi_profile_v2 *has = &profiles[p];
            if (nvml.DeviceGetGpuInstanceRemainingCapacity(gpus->device[i], has->id, &free) != NVML_SUCCESS)
                continue;
            ROW(WIDTH, "  %2u  %-17s %2u    %3u/%-3u    %8.2f   %4s   %4u  %4u  %4u", number_of(gpus->device[i]),
                has->name, has->id, free, has->instances, (double)has->memory_mib / 1024, has->p2p ? "Yes" : "No",
                has->multiprocessors, has->decoders, has->encoders);
            ROW(WIDTH, "%63u  %4u  %4u", has->copy_engines, has->jpeg_engines, has->ofa_engines);
            rule(WIDTH, p + 1 < count ? '|' : '+', '-');
        }
    }
    return EXIT_SUCCESS;
}

static int list_placements(const struct devices *gpus)
{
    for (unsigned i = 0; i < gpus->count; i++) {
        nvml_gi_profile_v2 profiles[MAX_PROFILES];
        unsigned count = profiles_of(gpus->device[i], profiles);
        for (unsigned p = 0; p < count; p++) {
            nvml_placement places[MAX_INSTANCES];
            unsigned places_count = MAX_INSTANCES;
            nvml_code code = nvml.DeviceGetGpuInstancePossiblePlacements(
                gpus->device[i], profiles[p].id, places, &places_count);
            if (code != NVML_SUCCESS || places_count == 0)
                continue;
            printf("GPU %2u Profile ID %2u %s {", number_of(gpus->device[i]), profiles[p].id,
                   places_count == 1 ? "Placement :" : "Placements:");
            for (unsigned k = 0; k < places_count; k++)
                printf("%s%u", k == 0 ? "" : ",", places[k].start);
            printf("}:%u\n", places[0].size);
        }
    }
    return EXIT_SUCCESS;
}

static int list_instances(const struct mig_options *options, const struct devices *gpus)
{
    enum { WIDTH = 52 };
    unsigned shown = 0;
    for (unsigned i = 0; i < gpus->count; i++) {
        struct gpu_instance found[MAX_INSTANCES];
        unsigned count = gpu_instances_of(gpus->device[i], options->instances, found);
        for (unsigned k = 0; k < count; k++) {
            if (shown++ == 0) {
                rule(WIDTH, '+', '-');
                ROW(WIDTH, " GPU instances:");
                ROW(WIDTH, " GPU   Name          Profile  Instance   Placement");
                ROW(WIDTH, "                       ID       ID       Start:Size");
                rule(WIDTH, '|', '=');
            }
            ROW(WIDTH, "  %2u  %-14s   %3u      %3u        %2u:%-2u", number_of(gpus->device[i]), found[k].profile.name,
                found[k].info.profile_id, found[k].info.id, found[k].info.placement.start,
                found[k].info.placement.size);
            rule(WIDTH, '+', '-');
        }
    }
    return shown == 0 ? not_found("GPU instances") : EXIT_SUCCESS;
}

static int list_compute_profiles(const struct mig_options *options, const struct devices *gpus)
{
    enum { WIDTH = 83 };
    unsigned shown = 0;
    for (unsigned i = 0; i < gpus->count; i++) {
        struct gpu_instance found[MAX_INSTANCES];
        unsigned count = gpu_instances_of(gpus->device[i], options->instances, found);
        for (unsigned k = 0; k < count; k++) {
            nvml_ci_profile_v2 profiles[MAX_PROFILES];
            unsigned free, profile_count = compute_profiles_of(&found[k], profiles);
            if (shown++ == 0) {
                rule(WIDTH, '+', '-');
                ROW(WIDTH, " Compute instance profiles:");
                ROW(WIDTH, " GPU     GPU       Name             Profile  Instances   Exclusive       Shared");
                ROW(WIDTH, "       Instance                       ID     Free/Total     SM       DEC  ENC  OFA");
                ROW(WIDTH, "         ID                                                          CE   JPEG");
                rule(WIDTH, '|', '=');
            }
            for (unsigned p = 0; p < profile_count; p++) {
                const nvml_ci_profile *has = &profiles[p].profile;
                if (nvml.GpuInstanceGetComputeInstanceRemainingCapacity(found[k].handle, has->id, &free) != NVML_SUCCESS)
                    continue;
                /* The star is at the one that covers the instance, which -cci makes by itself. */
                ROW(WIDTH, "  %2u     %3u       %-16s   %2u%c     %3u/%-3u      %4u      %3u  %3u  %3u",
                    number_of(gpus->device[i]), found[k].info.id, profiles[p].name, has->id,
                    has->slices == found[k].profile.slices ? '*' : ' ', free, has->instances, has->multiprocessors,
                    has->decoders, has->encoders, has->ofa_engines);
                ROW(WIDTH, "%71u  %3u", has->copy_engines, has->jpeg_engines);
                rule(WIDTH, p + 1 < profile_count ? '|' : '+', '-');
            }
        }
    }
    return shown == 0 ? not_found("GPU instances") : EXIT_SUCCESS;
}

static int list_compute_instances(const struct mig_options *options, const struct devices *gpus)
{
    enum { WIDTH = 68 };
    unsigned shown = 0;
    for (unsigned i = 0; i < gpus->count; i++) {
        struct gpu_instance found[MAX_INSTANCES];
        unsigned count = gpu_instances_of(gpus->device[i], options->instances, found);
        for (unsigned k = 0; k < count; k++) {
            struct compute_instance computes[MAX_INSTANCES];
            unsigned compute_count = compute_instances_of(&found[k], options->computes, computes);
            for (unsigned c = 0; c < compute_count; c++) {
                const nvml_ci_info *info = &computes[c].info;
                if (shown++ == 0) {
                    rule(WIDTH, '+', '-');
                    ROW(WIDTH, " Compute instances:");
                    ROW(WIDTH, " GPU     GPU       Name             Profile   Instance   Placement");
                    ROW(WIDTH, "       Instance                       ID        ID       Start:Size");
                    ROW(WIDTH, "         ID");
                    rule(WIDTH, '|', '=');
                }
                ROW(WIDTH, "  %2u     %3u       %-16s   %2u       %3u         %2u:%-2u", number_of(gpus->device[i]),
                    found[k].info.id, computes[c].profile.name, info->profile_id, info->id, info->placement.start,
                    info->placement.size);
                rule(WIDTH, '+', '-');
            }
        }
    }
    return shown == 0 ? not_found("compute instances") : EXIT_SUCCESS;
}

int mig_list(const struct mig_options *options, const struct devices *gpus)
{
    switch (options->action) {
    case MIG_LIST_PROFILES:
        return list_profiles(gpus);
    case MIG_LIST_PLACEMENTS:
        return list_placements(gpus);
    case MIG_LIST_INSTANCES:
        return list_instances(options, gpus);
    case MIG_LIST_COMPUTE_PROFILES:
        return list_compute_profiles(options, gpus);
    default:
        return list_compute_instances(options, gpus);
    }
}
