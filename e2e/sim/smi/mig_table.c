// SPDX-License-Identifier: Apache-2.0

/* The MIG devices in the summary of nvidia-smi. */
#include <stdio.h>

#include "smi.h"

static const char HEADINGS[] =
    "+-----------------------------------------------------------------------------------------+\n"
    "| MIG devices:                                                                            |\n"
    "+------------------+----------------------------------+-----------+-----------------------+\n"
    "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |\n"
    "|      ID  ID  Dev |                                  | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
    "|                  |                                  |        ECC|                       |\n"
    "|==================+==================================+===========+=======================|\n";
static const char RULE[] =
    "+------------------+----------------------------------+-----------+-----------------------+\n";

static bool has_mig_on(nvml_device device)
{
    unsigned current, pending;
    return nvml.DeviceGetMigMode(device, &current, &pending) == NVML_SUCCESS && current;
}

/* The ways of one device may fail when it is destroyed meanwhile: then it has no row. */
static void print_row(nvml_device gpu, nvml_device device)
{
    unsigned number, index, gpu_instance, compute_instance;
    nvml_device_attributes has;
    nvml_memory_v2 memory = {.version = NVML_VERSION_WORD(nvml_memory_v2, 2)};
    char usage[64];
    if (nvml.DeviceGetIndex(gpu, &number) != NVML_SUCCESS || nvml.DeviceGetIndex(device, &index) != NVML_SUCCESS ||
        nvml.DeviceGetGpuInstanceId(device, &gpu_instance) != NVML_SUCCESS ||
        nvml.DeviceGetComputeInstanceId(device, &compute_instance) != NVML_SUCCESS ||
        nvml.DeviceGetAttributes(device, &has) != NVML_SUCCESS ||
        nvml.DeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS)
        return;
    snprintf(usage, sizeof usage, "%lluMiB / %lluMiB", (unsigned long long)(memory.used >> 20),
             (unsigned long long)(memory.total >> 20));
    printf("| %2u  %3u %3u %3u  | %32s | %3u     0 | %2u %3u %4u %4u %4u |\n", number, gpu_instance, compute_instance,
           index, usage, has.multiprocessors, has.copy_engines, has.encoders, has.decoders, has.ofa_engines,
           has.jpeg_engines);
}

void mig_table_print(const struct devices *devices)
{
    unsigned enabled = 0, rows = 0;
    struct devices found;
    for (unsigned i = 0; i < devices->count; i++)
        enabled += has_mig_on(devices->device[i]);
    if (enabled == 0)
        return;
    printf("\n%s", HEADINGS);
    for (unsigned i = 0; i < devices->count; i++) {
        mig_devices_of(devices->device[i], &found);
        for (unsigned k = 0; k < found.count; k++, rows++)
            print_row(devices->device[i], found.device[k]);
    }
    if (rows == 0)
        printf("|  %-86s |\n", "No MIG devices found");
    printf("%s", RULE);
}
