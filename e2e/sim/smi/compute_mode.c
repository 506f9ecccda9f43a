// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi -c: who may use a GPU for computing. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "smi.h"

static const char *const NAMES[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
enum { MODES = sizeof NAMES / sizeof *NAMES };

int compute_mode_of(const char *text)
{
    if (isdigit((unsigned char)text[0]) && text[1] == '\0')
        return text[0] - '0' < MODES ? text[0] - '0' : -1;
    for (int mode = 0; mode < MODES; mode++)
        if (strcasecmp(text, NAMES[mode]) == 0)
            return mode;
    return -1;
}

static int refuse(const char *bus_id, unsigned mode, nvml_code code)
{
    printf("Unable to set the compute mode to %s for GPU %s: %s\n", NAMES[mode], bus_id, nvml.ErrorString(code));
    return exit_code_of(code);
}

static int set_one(const struct options *options, nvml_device device)
{
    unsigned mode = options->compute_mode;
    nvml_pci_info pci = {.bus_id = ""};
    unsigned before;
    nvml_code code = nvml.DeviceGetPciInfo(device, &pci);
    if (code == NVML_SUCCESS)
        code = nvml.DeviceGetComputeMode(device, &before);
    if (code == NVML_SUCCESS)
        code = nvml.DeviceSetComputeMode(device, mode);
    if (code != NVML_SUCCESS)
        return refuse(pci.bus_id, mode, code);
    printf(before == mode ? "Compute mode is already set to %s for GPU %s.\n"
                          : "Set compute mode to %s for GPU %s.\n",
           NAMES[mode], pci.bus_id);
    return 0;
}

int compute_mode_set(const struct options *options, const struct devices *devices)
{
    return set_on_each(options, devices, set_one);
}
