// SPDX-License-Identifier: Apache-2.0

/* How devices are found: GPUs counted, and GPUs and MIG devices looked up by what names them (nvml-simulator.md §6.2). */
#include <ctype.h>
#include <stdlib.h>
#include <strings.h>

#include "sim.h"

EXPORT nvml_code nvmlDeviceGetCount_v2(unsigned *count)
{
    CALL(nvmlDeviceGetCount_v2);
    REQUIRE_POINTER(count);
    NODE();
    *count = count_visible_gpus();
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}
ALIAS(nvmlDeviceGetCount_v1, nvmlDeviceGetCount);

/* Hands out the handle of a GPU that was found, unless a rule for it says otherwise. */
static nvml_code found(struct call *call, unsigned gpu, nvml_device *device)
{
    nvml_code code = ask_driver(call, (int)gpu);
    if (code != NVML_SUCCESS)
        return code;
    if (!read_gpu(gpu).lost)
        code = use_gpu(gpu);
    if (code != NVML_SUCCESS)
        return code;
    *device = handle_of(gpu);
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device)
{
    CALL(nvmlDeviceGetHandleByIndex_v2);
    REQUIRE_POINTER(device);
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        if (gpu_is_visible(gpu) && index-- == 0)
            RETURN(found(&call, gpu, device));
    REQUIRE_OK(ask_driver(&call, SIM_ANY_GPU));
    RETURN(NVML_INVALID_ARGUMENT);
}

EXPORT nvml_code nvmlDeviceGetHandleByIndex(unsigned index, nvml_device *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}
ALIAS(nvmlDeviceGetHandleByIndex_v1, nvmlDeviceGetHandleByIndex);

typedef bool predicate(const struct sim_gpu_spec *spec, const void *wanted);

static nvml_code find_gpu(struct call *call, predicate *is_it, const void *wanted, nvml_device *device)
{
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        if (is_it(&description()->gpus[gpu], wanted) && gpu_is_visible(gpu))
            return found(call, gpu, device);
    nvml_code code = ask_driver(call, SIM_ANY_GPU);
    return code == NVML_SUCCESS ? NVML_NOT_FOUND : code;
}

enum { UUID_PREFIX = 4 }; /* "GPU-", which callers may leave out */

static bool has_uuid(const struct sim_gpu_spec *spec, const void *text)
{
    return strcmp(spec->uuid, text) == 0 || strcmp(spec->uuid + UUID_PREFIX, text) == 0;
}

/* Hands out the handle of a MIG device, once its GPU has been asked. */
static nvml_code found_mig(struct call *call, const struct instance *mig, nvml_device *device)
{
    struct gpu gpu;
    nvml_code code = open_gpu(mig->gpu, call, &gpu);
    nvml_device handle = code == NVML_SUCCESS ? instance_handle(mig) : NULL;
    if (code == NVML_SUCCESS && handle == NULL)
        code = NVML_MEMORY;
    if (code == NVML_SUCCESS)
        *device = handle;
    return code;
}

static nvml_code find_by_text(struct call *call, const char *uuid, nvml_device *device)
{
    struct instance mig;
    if (find_mig_device(uuid, &mig))
        return found_mig(call, &mig, device);
    return find_gpu(call, has_uuid, uuid, device);
}

EXPORT nvml_code nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device)
{
    CALL(nvmlDeviceGetHandleByUUID);
    REQUIRE_POINTER(uuid);
    REQUIRE_POINTER(device);
    RETURN(find_by_text(&call, uuid, device));
}

static bool has_uuid_bytes(const struct sim_gpu_spec *spec, const void *bytes)
{
    char text[37];
    format_uuid(bytes, text);
    return strncmp(spec->uuid, "GPU-", UUID_PREFIX) == 0 && strcasecmp(spec->uuid + UUID_PREFIX, text) == 0;
}

static nvml_code find_by_bytes(struct call *call, const uint8_t uuid[16], nvml_device *device)
{
    struct instance mig;
    if (find_mig_device_by_bytes(uuid, &mig))
        return found_mig(call, &mig, device);
    return find_gpu(call, has_uuid_bytes, uuid, device);
}

EXPORT nvml_code nvmlDeviceGetHandleByUUIDV(const nvml_uuid *uuid, nvml_device *device)
{
    CALL(nvmlDeviceGetHandleByUUIDV);
    REQUIRE_POINTER(uuid);
    REQUIRE_POINTER(device);
    REQUIRE_VERSION(uuid, 1);
    if (uuid->type == NVML_UUID_TYPE_BINARY)
        RETURN(find_by_bytes(&call, uuid->value.bytes, device));
    REQUIRE(uuid->type == NVML_UUID_TYPE_ASCII, NVML_INVALID_ARGUMENT);
    REQUIRE(memchr(uuid->value.text, '\0', sizeof uuid->value.text) != NULL, NVML_INVALID_ARGUMENT);
    RETURN(find_by_text(&call, uuid->value.text, device));
}

static bool has_serial(const struct sim_gpu_spec *spec, const void *serial)
{
    return spec->serial[0] != '\0' && strcmp(spec->serial, serial) == 0;
}

EXPORT nvml_code nvmlDeviceGetHandleBySerial(const char *serial, nvml_device *device)
{
    CALL(nvmlDeviceGetHandleBySerial);
    REQUIRE_POINTER(serial);
    REQUIRE_POINTER(device);
    RETURN(find_gpu(&call, has_serial, serial, device));
}

/* ---- PCI bus ids -------------------------------------------------------------------------------------- */

struct bus_id {
    uint32_t domain, bus, device;
};

/* One hexadecimal field of any width and case; `text` moves behind it. */
static bool parse_field(const char **text, uint32_t *field)
{
    char *rest;
    if (!isxdigit((unsigned char)**text))
        return false;
    unsigned long value = strtoul(*text, &rest, 16);
    *text = rest;
    *field = (uint32_t)value;
    return value <= UINT32_MAX;
}

/* [domain:]bus:device[.function] */
static bool parse_bus_id(const char *text, struct bus_id *id)
{
    uint32_t fields[3], function = 0;
    unsigned count = 0;
    do {
        if (count == 3 || !parse_field(&text, &fields[count++]))
            return false;
    } while (*text == ':' && text++);
    if (*text == '.' && (text++, !parse_field(&text, &function)))
        return false;
    if (*text != '\0' || count < 2)
        return false;
    *id = (struct bus_id){count == 3 ? fields[0] : 0, fields[count - 2], fields[count - 1]};
    return function == 0;
}

static bool has_bus_id(const struct sim_gpu_spec *spec, const void *wanted)
{
    const struct bus_id *id = wanted;
    return spec->pci_domain == id->domain && spec->pci_bus == id->bus && spec->pci_device == id->device;
}

EXPORT nvml_code nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvml_device *device)
{
    struct bus_id id;
    CALL(nvmlDeviceGetHandleByPciBusId_v2);
    REQUIRE_POINTER(text);
    REQUIRE_POINTER(device);
    REQUIRE(parse_bus_id(text, &id), NVML_INVALID_ARGUMENT);
    RETURN(find_gpu(&call, has_bus_id, &id, device));
}

EXPORT nvml_code nvmlDeviceGetHandleByPciBusId(const char *text, nvml_device *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}
ALIAS(nvmlDeviceGetHandleByPciBusId_v1, nvmlDeviceGetHandleByPciBusId);
