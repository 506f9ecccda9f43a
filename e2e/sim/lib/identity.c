// SPDX-License-Identifier: Apache-2.0

/*
 * Who a GPU is: names, numbers and where it sits on the PCI bus and in its rack (nvml-simulator.md §6.2). A MIG device
 * has a name, a UUID and an index of its own, and shares what its GPU is made of.
 */
#include <stdio.h>

#include "sim.h"

EXPORT nvml_code nvmlDeviceGetName(nvml_device device, char *name, unsigned length)
{
    CALL(nvmlDeviceGetName);
    REQUIRE_POINTER(name);
    DEVICE(device);
    RETURN(gpu.is_mig ? mig_name(&gpu, name, length) : answer_text(name, length, gpu.spec->name));
}

EXPORT nvml_code nvmlDeviceGetUUID(nvml_device device, char *uuid, unsigned length)
{
    CALL(nvmlDeviceGetUUID);
    REQUIRE_POINTER(uuid);
    DEVICE(device);
    RETURN(gpu.is_mig ? mig_uuid(&gpu, uuid, length) : answer_text(uuid, length, gpu.spec->uuid));
}

EXPORT nvml_code nvmlDeviceGetIndex(nvml_device device, unsigned *index)
{
    CALL(nvmlDeviceGetIndex);
    REQUIRE_POINTER(index);
    DEVICE(device);
    if (gpu.is_mig)
        RETURN(mig_index(&gpu, index));
    *index = 0;
    for (unsigned other = 0; other < gpu.number; other++)
        *index += gpu_is_visible(other);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetMinorNumber(nvml_device device, unsigned *minor)
{
    CALL(nvmlDeviceGetMinorNumber);
    REQUIRE_POINTER(minor);
    GPU(device);
    *minor = gpu.now.minor;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetBrand(nvml_device device, uint32_t *brand)
{
    CALL(nvmlDeviceGetBrand);
    REQUIRE_POINTER(brand);
    DEVICE(device);
    *brand = gpu.spec->brand;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetArchitecture(nvml_device device, uint32_t *architecture)
{
    CALL(nvmlDeviceGetArchitecture);
    REQUIRE_POINTER(architecture);
    DEVICE(device);
    *architecture = gpu.spec->architecture;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetCudaComputeCapability(nvml_device device, int *major, int *minor)
{
    CALL(nvmlDeviceGetCudaComputeCapability);
    REQUIRE_POINTER(major);
    REQUIRE_POINTER(minor);
    DEVICE(device);
    *major = (int)gpu.spec->capability_major;
    *minor = (int)gpu.spec->capability_minor;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetSerial(nvml_device device, char *serial, unsigned length)
{
    CALL(nvmlDeviceGetSerial);
    REQUIRE_POINTER(serial);
    GPU(device);
    REQUIRE(gpu.spec->serial[0] != '\0', NVML_NOT_SUPPORTED);
    RETURN(answer_text(serial, length, gpu.spec->serial));
}

EXPORT nvml_code nvmlDeviceGetBoardPartNumber(nvml_device device, char *number, unsigned length)
{
    CALL(nvmlDeviceGetBoardPartNumber);
    REQUIRE_POINTER(number);
    GPU(device);
    RETURN(answer_text(number, length, gpu.spec->board_part_number));
}

EXPORT nvml_code nvmlDeviceGetVbiosVersion(nvml_device device, char *version, unsigned length)
{
    CALL(nvmlDeviceGetVbiosVersion);
    REQUIRE_POINTER(version);
    GPU(device);
    RETURN(answer_text(version, length, gpu.spec->vbios));
}

EXPORT nvml_code nvmlDeviceGetBoardId(nvml_device device, unsigned *id)
{
    CALL(nvmlDeviceGetBoardId);
    REQUIRE_POINTER(id);
    GPU(device);
    *id = gpu.spec->pci_domain << 16 | gpu.spec->pci_bus << 8 | gpu.spec->pci_device;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetMultiGpuBoard(nvml_device device, unsigned *multi_gpu)
{
    CALL(nvmlDeviceGetMultiGpuBoard);
    REQUIRE_POINTER(multi_gpu);
    GPU(device);
    *multi_gpu = 0; /* no board of any profile carries two GPUs */
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetModuleId(nvml_device device, unsigned *id)
{
    CALL(nvmlDeviceGetModuleId);
    REQUIRE_POINTER(id);
    DEVICE(device);
    *id = gpu.spec->module_id;
    RETURN(NVML_SUCCESS);
}

/* Both versions are 44 bytes; they differ in what the second half means. */
EXPORT nvml_code nvmlDeviceGetPlatformInfo(nvml_device device, nvml_platform_info *info)
{
    CALL(nvmlDeviceGetPlatformInfo);
    REQUIRE_POINTER(info);
    bool first = info->version == NVML_VERSION_WORD(nvml_platform_info, 1);
    REQUIRE(first || info->version == NVML_VERSION_WORD(nvml_platform_info, 2), NVML_VERSION_MISMATCH);
    GPU(device);
    const struct sim_gpu_spec *spec = gpu.spec;
    REQUIRE(spec->has_platform, NVML_NOT_SUPPORTED);
    memcpy(info->ib_guid, spec->platform_ib_guid, sizeof info->ib_guid);
    memcpy(info->chassis, first ? spec->platform_rack_guid : spec->platform_chassis_serial, sizeof info->chassis);
    info->slot = (uint8_t)spec->platform_slot;
    info->tray = (uint8_t)spec->platform_tray;
    info->host = (uint8_t)spec->platform_host;
    info->peer_type = (uint8_t)spec->platform_peer_type;
    info->module_id = (uint8_t)spec->module_id;
    RETURN(NVML_SUCCESS);
}

/* ---- GPU system processor ----------------------------------------------------------------------------- */

/* The interface has no length: callers bring 64 bytes. */
EXPORT nvml_code nvmlDeviceGetGspFirmwareVersion(nvml_device device, char *version)
{
    CALL(nvmlDeviceGetGspFirmwareVersion);
    REQUIRE_POINTER(version);
    GPU(device);
    REQUIRE(gpu.spec->gsp, NVML_NOT_SUPPORTED);
    RETURN(answer_text(version, 64, description()->driver_version));
}

EXPORT nvml_code nvmlDeviceGetGspFirmwareMode(nvml_device device, unsigned *enabled, unsigned *by_default)
{
    CALL(nvmlDeviceGetGspFirmwareMode);
    REQUIRE_POINTER(enabled);
    REQUIRE_POINTER(by_default);
    GPU(device);
    REQUIRE(gpu.spec->gsp, NVML_NOT_SUPPORTED);
    *enabled = *by_default = 1;
    RETURN(NVML_SUCCESS);
}

/* ---- PCI, in the four shapes it has had --------------------------------------------------------------- */

static void write_bus_id(const struct sim_gpu_spec *spec, char *text, size_t size, const char *format)
{
    snprintf(text, size, format, spec->pci_domain, spec->pci_bus, spec->pci_device);
}

#define BUS_ID "%08X:%02X:%02X.0"
#define BUS_ID_LEGACY "%04X:%02X:%02X.0"

static void describe_first(const struct sim_gpu_spec *spec, nvml_pci_info_v1 *pci)
{
    write_bus_id(spec, pci->bus_id, sizeof pci->bus_id, BUS_ID_LEGACY);
    pci->domain = spec->pci_domain;
    pci->bus = spec->pci_bus;
    pci->device = spec->pci_device;
    pci->pci_device_id = spec->pci_device_id;
}

EXPORT nvml_code nvmlDeviceGetPciInfo(nvml_device device, nvml_pci_info_v1 *pci)
{
    CALL(nvmlDeviceGetPciInfo);
    REQUIRE_POINTER(pci);
    DEVICE(device);
    describe_first(gpu.spec, pci);
    RETURN(NVML_SUCCESS);
}
ALIAS(nvmlDeviceGetPciInfo_v1, nvmlDeviceGetPciInfo);

EXPORT nvml_code nvmlDeviceGetPciInfo_v2(nvml_device device, nvml_pci_info_v2 *pci)
{
    CALL(nvmlDeviceGetPciInfo_v2);
    REQUIRE_POINTER(pci);
    DEVICE(device);
    describe_first(gpu.spec, &pci->v1);
    pci->pci_subsystem_id = gpu.spec->pci_subsystem_id;
    memset(pci->reserved, 0, sizeof pci->reserved);
    RETURN(NVML_SUCCESS);
}

static void describe_third(const struct sim_gpu_spec *spec, nvml_pci_info *pci)
{
    write_bus_id(spec, pci->bus_id_legacy, sizeof pci->bus_id_legacy, BUS_ID_LEGACY);
    write_bus_id(spec, pci->bus_id, sizeof pci->bus_id, BUS_ID);
    pci->domain = spec->pci_domain;
    pci->bus = spec->pci_bus;
    pci->device = spec->pci_device;
    pci->pci_device_id = spec->pci_device_id;
    pci->pci_subsystem_id = spec->pci_subsystem_id;
}

EXPORT nvml_code nvmlDeviceGetPciInfo_v3(nvml_device device, nvml_pci_info *pci)
{
    CALL(nvmlDeviceGetPciInfo_v3);
    REQUIRE_POINTER(pci);
    DEVICE(device);
    describe_third(gpu.spec, pci);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetPciInfoExt(nvml_device device, nvml_pci_info_ext *pci)
{
    CALL(nvmlDeviceGetPciInfoExt);
    REQUIRE_POINTER(pci);
    REQUIRE_VERSION(pci, 1);
    DEVICE(device);
    write_bus_id(gpu.spec, pci->bus_id, sizeof pci->bus_id, BUS_ID);
    pci->domain = gpu.spec->pci_domain;
    pci->bus = gpu.spec->pci_bus;
    pci->device = gpu.spec->pci_device;
    pci->pci_device_id = gpu.spec->pci_device_id;
    pci->pci_subsystem_id = gpu.spec->pci_subsystem_id;
    pci->base_class = 3;
    pci->sub_class = 2;
    RETURN(NVML_SUCCESS);
}

/* ---- GPUs that the kernel module leaves alone (NVreg_ExcludedGpus) ------------------------------------ */

EXPORT nvml_code nvmlGetExcludedDeviceCount(unsigned *count)
{
    CALL(nvmlGetExcludedDeviceCount);
    REQUIRE_POINTER(count);
    NODE();
    *count = 0;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        *count += description()->gpus[gpu].excluded;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlGetExcludedDeviceInfoByIndex(unsigned index, nvml_excluded_device *info)
{
    CALL(nvmlGetExcludedDeviceInfoByIndex);
    REQUIRE_POINTER(info);
    NODE();
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++) {
        const struct sim_gpu_spec *spec = &description()->gpus[gpu];
        if (!spec->excluded || index-- > 0)
            continue;
        *info = (nvml_excluded_device){0};
        describe_third(spec, &info->pci);
        snprintf(info->uuid, sizeof info->uuid, "%s", spec->uuid);
        RETURN(NVML_SUCCESS);
    }
    RETURN(NVML_INVALID_ARGUMENT);
}
