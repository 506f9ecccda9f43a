/* nvidia-smi -L */
#include <stdio.h>
#include <stdlib.h>

#include "smi.h"

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
    }
    return EXIT_SUCCESS;
}
