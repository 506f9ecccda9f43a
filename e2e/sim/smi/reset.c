// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi --gpu-reset: a GPU as after a boot, without one. */
#include <stdio.h>

#include "smi.h"

int reset_run(const struct devices *devices)
{
    int failed = 0;
    unsigned refused = 0;
    for (unsigned i = 0; i < devices->count; i++) {
        nvml_pci_info pci = {.bus_id = ""};
        nvml_code code = nvml.DeviceGetPciInfo(devices->device[i], &pci);
        if (code == NVML_SUCCESS)
            code = nvml_private->reset(devices->device[i]);
        if (code == NVML_SUCCESS) {
            printf("GPU %s was successfully reset.\n", pci.bus_id);
            continue;
        }
        if (refused++ == 0)
            printf("The following GPUs could not be reset:\n");
        printf("  GPU %s: %s\n", pci.bus_id, nvml.ErrorString(code));
        failed = exit_code_of(code);
    }
    printf("%s", refused == 0 ? "All done.\n" : "\n");
    return failed;
}
