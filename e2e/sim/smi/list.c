// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi -L */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

/* "3g.40gb" of "NVIDIA H100 80GB HBM3 MIG 3g.40gb". */
static const char *profile_in(const char *name)
{
    static const char MARK[] = " MIG ";
    const char *mark = strstr(name, MARK);
    return mark == NULL ? name : mark + sizeof MARK - 1;
}

static void print_mig_devices_of(nvml_device device)
{
    struct devices found;
    mig_devices_of(device, &found);
    for (unsigned i = 0; i < found.count; i++) {
        unsigned index;
        char name[TEXT], uuid[TEXT];
        if (nvml.DeviceGetIndex(found.device[i], &index) == NVML_SUCCESS &&
            nvml.DeviceGetName(found.device[i], name, sizeof name) == NVML_SUCCESS &&
            nvml.DeviceGetUUID(found.device[i], uuid, sizeof uuid) == NVML_SUCCESS)
            printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile_in(name), index, uuid);
    }
}

int list_print(const struct devices *devices)
{
    for (unsigned i = 0; i < devices->count; i++) {
        nvml_device device = devices->device[i];
        unsigned index;
        char name[TEXT], uuid[TEXT];
        nvml_code code = nvml.DeviceGetIndex(device, &index);
        if (code == NVML_SUCCESS)
            code = nvml.DeviceGetName(device, name, sizeof name);
        if (code == NVML_SUCCESS)
            code = nvml.DeviceGetUUID(device, uuid, sizeof uuid);
        if (code != NVML_SUCCESS) {
            printf("Unable to read GPU %u: %s\n", i, nvml.ErrorString(code));
            return exit_code_of(code);
        }
        printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
        print_mig_devices_of(device);
    }
    return EXIT_SUCCESS;
}
