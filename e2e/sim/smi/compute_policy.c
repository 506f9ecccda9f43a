// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi compute-policy: how long a process computes before another one on the same GPU has its turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

static const char *const NAMES[] = {"Default", "Short", "Medium", "Long"};

static const char USAGE[] =
    "nvidia-smi compute-policy -- Show and set compute policies.\n"
    "\n"
    "    -i, --id=ID[,ID...]         Only these GPUs: index, UUID or PCI bus id.\n"
    "    -l, --list                  Show the policies.\n"
    "    --set-timeslice=0|1|2|3     Set the time slice: default, short, medium, long.\n"
    "    -h, --help                  Show this text.\n";

int compute_policy_parse(char **arguments, struct options *options)
{
    const char *value;
    options->command = COMMAND_HELP;
    options->time_slice = -1;
    options->usage = USAGE;
    for (int place = 0; arguments[place] != NULL; place++) {
        const char *argument = arguments[place];
        if (strcmp(argument, "-l") == 0 || strcmp(argument, "--list") == 0)
            options->command = COMMAND_COMPUTE_POLICY;
        else if (strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0) {
            options->command = COMMAND_HELP;
            return EXIT_SUCCESS;
        } else if ((value = value_of("-i", arguments, &place)) || (value = value_of("--id", arguments, &place)))
            options->ids = value;
        else if ((value = value_of("--set-timeslice", arguments, &place))) {
            if (strlen(value) != 1 || strchr("0123", value[0]) == NULL)
                return bad_argument("\"%s\" is not a time slice.\n", value);
            options->command = COMMAND_COMPUTE_POLICY;
            options->time_slice = value[0] - '0';
        } else
            return bad_argument("Invalid combination of input arguments: %s.\n", argument);
    }
    return EXIT_SUCCESS;
}

static int refuse(const char *what, const char *bus_id, nvml_code code)
{
    printf("Unable to %s the time slice of GPU %s: %s\n", what, bus_id, nvml.ErrorString(code));
    return exit_code_of(code);
}

static int set_one(unsigned time_slice, nvml_device device, const char *bus_id)
{
    nvml_code code = nvml_private->set_time_slice(device, time_slice);
    if (code != NVML_SUCCESS)
        return refuse("set", bus_id, code);
    printf("Set time slice to %s for GPU %s.\n", NAMES[time_slice], bus_id);
    return 0;
}

static int list_one(nvml_device device, const char *bus_id)
{
    unsigned index = 0, time_slice;
    nvml_code code = nvml.DeviceGetIndex(device, &index);
    if (code == NVML_SUCCESS)
        code = nvml_private->get_time_slice(device, &time_slice);
    if (code != NVML_SUCCESS)
        return refuse("read", bus_id, code);
    printf("| %3u   %s   %-10s |\n", index, bus_id, NAMES[time_slice]);
    return 0;
}

int compute_policy_run(const struct options *options, const struct devices *devices)
{
    static const char rule[] = "+---------------------------------------+\n";
    bool lists = options->time_slice < 0;
    if (lists)
        printf("%s| GPU   Bus-Id             Timeslice    |\n%s", rule, rule);
    for (unsigned i = 0; i < devices->count; i++) {
        nvml_pci_info pci = {.bus_id = ""};
        nvml_code code = nvml.DeviceGetPciInfo(devices->device[i], &pci);
        if (code != NVML_SUCCESS)
            return refuse(lists ? "read" : "set", pci.bus_id, code);
        int failed = lists ? list_one(devices->device[i], pci.bus_id)
                           : set_one((unsigned)options->time_slice, devices->device[i], pci.bus_id);
        if (failed != 0)
            return failed;
    }
    printf("%s", lists ? rule : "All done.\n");
    return 0;
}
