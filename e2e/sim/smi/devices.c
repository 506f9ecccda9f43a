// SPDX-License-Identifier: Apache-2.0

/* Which GPUs a command is about, and the MIG devices on them. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

static nvml_code cannot_reach(const char *what, nvml_code code)
{
    printf("Unable to determine the device handle for GPU %s: %s\n", what, nvml.ErrorString(code));
    return code;
}

static nvml_code select_all(struct devices *devices)
{
    unsigned count;
    nvml_code code = nvml.DeviceGetCount(&count);
    if (code != NVML_SUCCESS) {
        printf("Unable to count GPUs: %s\n", nvml.ErrorString(code));
        return code;
    }
    for (unsigned i = 0; i < count && i < MAX_DEVICES; i++) {
        code = nvml.DeviceGetHandleByIndex(i, &devices->device[devices->count]);
        if (code != NVML_SUCCESS) {
            char index[16];
            snprintf(index, sizeof index, "%u", i);
            return cannot_reach(index, code);
        }
        devices->count++;
    }
    return NVML_SUCCESS;
}

static bool is_index(const char *id)
{
    for (; *id != '\0'; id++)
        if (!isdigit((unsigned char)*id))
            return false;
    return true;
}

static nvml_code find(const char *id, nvml_device *device)
{
    if (is_index(id))
        return nvml.DeviceGetHandleByIndex((unsigned)strtoul(id, NULL, 10), device);
    if (strncmp(id, "GPU-", 4) == 0 || strncmp(id, "MIG-", 4) == 0)
        return nvml.DeviceGetHandleByUUID(id, device);
    return nvml.DeviceGetHandleByPciBusId(id, device);
}

nvml_code devices_select(const char *ids, struct devices *devices)
{
    devices->count = 0;
    if (ids == NULL)
        return select_all(devices);
    while (*ids != '\0' && devices->count < MAX_DEVICES) {
        char id[TEXT];
        size_t length = strcspn(ids, ",");
        snprintf(id, sizeof id, "%.*s", (int)length, ids);
        nvml_code code = find(id, &devices->device[devices->count]);
        if (code == NVML_SUCCESS)
            devices->count++;
        else if (code != NVML_NOT_FOUND && code != NVML_INVALID_ARGUMENT)
            return cannot_reach(id, code);
        ids += length + (ids[length] == ',');
    }
    return NVML_SUCCESS;
}

void mig_devices_of(nvml_device device, struct devices *found)
{
    unsigned count;
    found->count = 0;
    if (nvml.DeviceGetMaxMigDeviceCount(device, &count) != NVML_SUCCESS)
        return;
    for (unsigned i = 0; i < count && found->count < MAX_DEVICES; i++)
        if (nvml.DeviceGetMigDeviceHandleByIndex(device, i, &found->device[found->count]) == NVML_SUCCESS)
            found->count++;
}

int set_on_each(const struct options *options, const struct devices *devices,
                int (*set_one)(const struct options *options, nvml_device device))
{
    for (unsigned i = 0; i < devices->count; i++) {
        int failed = set_one(options, devices->device[i]);
        if (failed != 0)
            return failed;
    }
    printf("All done.\n");
    return 0;
}
