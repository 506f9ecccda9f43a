// SPDX-License-Identifier: Apache-2.0

/* The devices of NVML in the order and with the selection of CUDA. */
#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "mps.h"
#include "private_table.h"

/* X(name without "nvml", suffix of the symbol, arguments) */
#define NVML_FUNCTIONS(X)                                                          \
    X(InitWithFlags, "", (unsigned flags))                                         \
    X(SystemGetDriverVersion, "", (char *, unsigned))                              \
    X(SystemGetCudaDriverVersion, "_v2", (int *))                                  \
    X(InternalGetExportTable, "", (const void **, const void *))                   \
    X(DeviceGetCount, "_v2", (unsigned *))                                         \
    X(DeviceGetHandleByIndex, "_v2", (unsigned, nvml_device *))                    \
    X(DeviceGetUUID, "", (nvml_device, char *, unsigned))                          \
    X(DeviceGetName, "", (nvml_device, char *, unsigned))                          \
    X(DeviceGetMigMode, "", (nvml_device, unsigned *, unsigned *))                 \
    X(DeviceGetMaxMigDeviceCount, "", (nvml_device, unsigned *))                   \
    X(DeviceGetMigDeviceHandleByIndex, "", (nvml_device, unsigned, nvml_device *)) \
    X(DeviceGetAttributes, "_v2", (nvml_device, nvml_device_attributes *))         \
    X(DeviceGetMemoryInfo, "", (nvml_device, nvml_memory *))                       \
    X(DeviceGetNumGpuCores, "", (nvml_device, unsigned *))                         \
    X(DeviceGetComputeMode, "", (nvml_device, unsigned *))                         \
    X(DeviceGetCudaComputeCapability, "", (nvml_device, int *, int *))

static struct {
#define DECLARE(name, suffix, arguments) nvml_code(*name) arguments;
    NVML_FUNCTIONS(DECLARE)
#undef DECLARE
    const struct private_table *private;
} nvml;

bool devices_open(void *library)
{
    static const uint8_t id[16] = PRIVATE_TABLE_ID;
    const void *table;
    if (library == NULL)
        return false;
#define BIND(name, suffix, arguments)                                                \
    nvml.name = (nvml_code(*) arguments)dlsym(library, "nvml" #name suffix);         \
    if (nvml.name == NULL)                                                           \
        return false;
    NVML_FUNCTIONS(BIND)
#undef BIND
    if (nvml.InitWithFlags(NVML_INIT_NO_GPUS) != NVML_SUCCESS ||
        nvml.InternalGetExportTable(&table, id) != NVML_SUCCESS)
        return false;
    nvml.private = table;
    return nvml.private->size == sizeof *nvml.private;
}

/* Cores of one multiprocessor (CUDA C++ Programming Guide, compute capabilities). */
static unsigned cores_per_multiprocessor(unsigned major, unsigned minor)
{
    return major == 7 || (major == 8 && minor == 0) ? 64 : 128;
}

static void describe(struct cuda_device *device, bool is_mig)
{
    nvml_memory memory = {0};
    nvml_device_attributes attributes = {0};
    unsigned cores = 0;
    int major = 0, minor = 0;
    nvml.DeviceGetUUID(device->nvml, device->uuid, sizeof device->uuid);
    nvml.DeviceGetName(device->nvml, device->name, sizeof device->name);
    nvml.DeviceGetMemoryInfo(device->nvml, &memory);
    device->memory_bytes = memory.total;
    nvml.DeviceGetCudaComputeCapability(device->nvml, &major, &minor);
    device->capability_major = (unsigned)major;
    device->capability_minor = (unsigned)minor;
    if (is_mig) {
        nvml.DeviceGetAttributes(device->nvml, &attributes);
        device->multiprocessors = attributes.multiprocessors;
        return;
    }
    nvml.DeviceGetNumGpuCores(device->nvml, &cores);
    device->multiprocessors = cores / cores_per_multiprocessor(device->capability_major, device->capability_minor);
    nvml.DeviceGetComputeMode(device->nvml, &device->compute_mode);
}

static void add(struct cuda_devices *devices, nvml_device handle, bool is_mig)
{
    if (devices->count == MAX_DEVICES)
        return;
    struct cuda_device *device = &devices->device[devices->count++];
    *device = (struct cuda_device){.nvml = handle};
    describe(device, is_mig);
}

static void add_mig_devices(struct cuda_devices *devices, nvml_device gpu)
{
    unsigned count = 0;
    nvml_device handle;
    nvml.DeviceGetMaxMigDeviceCount(gpu, &count);
    for (unsigned i = 0; i < count; i++)
        if (nvml.DeviceGetMigDeviceHandleByIndex(gpu, i, &handle) == NVML_SUCCESS)
            add(devices, handle, true);
}

static void list_all(struct cuda_devices *devices)
{
    unsigned count = 0;
    devices->count = 0;
    nvml.DeviceGetCount(&count);
    for (unsigned i = 0; i < count; i++) {
        nvml_device gpu;
        unsigned mode = 0, pending;
        if (nvml.DeviceGetHandleByIndex(i, &gpu) != NVML_SUCCESS)
            continue;
        if (nvml.DeviceGetMigMode(gpu, &mode, &pending) == NVML_SUCCESS && mode)
            add_mig_devices(devices, gpu);
        else
            add(devices, gpu, false);
    }
}

/* The device that one word of CUDA_VISIBLE_DEVICES means; NULL: none. */
static const struct cuda_device *select_one(const struct cuda_devices *all, const char *word)
{
    char *end;
    unsigned long index = strtoul(word, &end, 10);
    if (isdigit((unsigned char)word[0]) && *end == '\0')
        return index < all->count ? &all->device[index] : NULL;
    size_t length = strlen(word);
    bool is_uuid = strncmp(word, "GPU-", 4) == 0 || strncmp(word, "MIG-", 4) == 0;
    for (unsigned i = 0; is_uuid && i < all->count; i++)
        if (strncmp(all->device[i].uuid, word, length) == 0)
            return &all->device[i];
    return NULL;
}

/* A process has one MIG device at most, and then no whole GPU (MIG guide, "CUDA Visible Devices"). */
static void keep_one_mig_device(struct cuda_devices *devices)
{
    for (unsigned i = 0; i < devices->count; i++) {
        if (strncmp(devices->device[i].uuid, "MIG-", 4) != 0)
            continue;
        devices->device[0] = devices->device[i];
        devices->count = 1;
    }
}

void devices_list(struct cuda_devices *devices)
{
    static struct cuda_devices all;
    const char *selection = getenv("CUDA_VISIBLE_DEVICES");
    list_all(&all);
    if (selection == NULL) {
        *devices = all;
        keep_one_mig_device(devices);
        return;
    }
    devices->count = 0;
    while (*selection != '\0' && devices->count < MAX_DEVICES) {
        char word[TEXT_SIZE];
        size_t length = strcspn(selection, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, selection);
        const struct cuda_device *device = select_one(&all, word);
        if (device == NULL)
            break;
        devices->device[devices->count++] = *device;
        selection += length + (selection[length] == ',');
    }
    keep_one_mig_device(devices);
}

int device_find(const struct cuda_devices *devices, const char *uuid)
{
    for (unsigned i = 0; i < devices->count; i++)
        if (strcmp(devices->device[i].uuid, uuid) == 0)
            return (int)i;
    return -1;
}

enum cuda_result device_open_context(const struct cuda_device *device)
{
    return nvml.private->open_context(device->nvml) == NVML_SUCCESS ? CUDA_SUCCESS : CUDA_DEVICE_UNAVAILABLE;
}

void device_close_context(const struct cuda_device *device)
{
    nvml.private->close_context(device->nvml);
}

bool devices_allow(const char *command)
{
    return nvml.private->begin_command("mps", command) == NVML_SUCCESS;
}

int devices_cuda_version(void)
{
    int version = 0;
    nvml.SystemGetCudaDriverVersion(&version);
    return version;
}

void devices_driver_version(char version[TEXT_SIZE])
{
    version[0] = '\0';
    nvml.SystemGetDriverVersion(version, TEXT_SIZE);
}
