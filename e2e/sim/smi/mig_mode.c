// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi -mig: turns MIG mode on or off, or leaves it to the next reset. */
#include <stdio.h>

#include "smi.h"

static int refuse(const char *bus_id, nvml_code code)
{
    printf("Unable to change MIG Mode for GPU %s: %s\n", bus_id, nvml.ErrorString(code));
    return exit_code_of(code);
}

static int set_one(const struct options *options, nvml_device device)
{
    bool on = options->mig_mode;
    nvml_pci_info pci;
    nvml_code activation = NVML_SUCCESS, code = nvml.DeviceGetPciInfo(device, &pci);
    if (code != NVML_SUCCESS)
        return refuse("", code);
    code = nvml.DeviceSetMigMode(device, on, &activation);
    if (code != NVML_SUCCESS)
        return refuse(pci.bus_id, code);
    if (activation == NVML_SUCCESS)
        printf("%s MIG Mode for GPU %s\n", on ? "Enabled" : "Disabled", pci.bus_id);
    else
        printf("Warning: MIG mode is in pending %s state for GPU %s: %s\n"
               "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU %s\n",
               on ? "enable" : "disable", pci.bus_id, nvml.ErrorString(activation), pci.bus_id);
    return 0;
}

int mig_mode_set(const struct options *options, const struct devices *devices)
{
    return set_on_each(options, devices, set_one);
}
