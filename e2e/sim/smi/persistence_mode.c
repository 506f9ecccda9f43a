// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi -pm: whether the driver keeps a GPU initialised that nobody uses. */
#include <stdio.h>

#include "smi.h"

static int refuse(const char *bus_id, nvml_code code)
{
    printf("Unable to set persistence mode for GPU %s: %s\n", bus_id, nvml.ErrorString(code));
    return exit_code_of(code);
}

static int set_one(const struct options *options, nvml_device device)
{
    bool on = options->persistence_mode;
    nvml_pci_info pci = {.bus_id = ""};
    unsigned before;
    const char *word = on ? "Enabled" : "Disabled";
    nvml_code code = nvml.DeviceGetPciInfo(device, &pci);
    if (code == NVML_SUCCESS)
        code = nvml.DeviceGetPersistenceMode(device, &before);
    if (code == NVML_SUCCESS)
        code = nvml.DeviceSetPersistenceMode(device, on);
    if (code != NVML_SUCCESS)
        return refuse(pci.bus_id, code);
    if (before == on)
        printf("Persistence mode is already %s for GPU %s.\n", word, pci.bus_id);
    else
        printf("%s persistence mode for GPU %s.\n", word, pci.bus_id);
    return 0;
}

int persistence_mode_set(const struct options *options, const struct devices *devices)
{
    return set_on_each(options, devices, set_one);
}
