// SPDX-License-Identifier: Apache-2.0

/*
 * NVML as a client sees it: the functions that nvidia-smi calls, found at run time in libnvidia-ml.so.1.
 * Structures and codes come from the library's own header.
 */
#pragma once

#include "private_table.h"

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, CLOCK_VIDEO = 3 };
enum { ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0, ECC_AGGREGATE = 1 };
enum { SENSOR_GPU = 0 };

/* Codes that the library's header has no use for. */
enum { NVML_LIBRARY_NOT_FOUND = 12 };

/* X(name without "nvml", suffix of the symbol, arguments) */
#define NVML_FUNCTIONS(X)                                                          \
    X(InitWithFlags, "", (unsigned flags))                                         \
    X(Shutdown, "", (void))                                                        \
    X(SystemGetDriverVersion, "", (char *, unsigned))                              \
    X(SystemGetNVMLVersion, "", (char *, unsigned))                                \
    X(SystemGetCudaDriverVersion, "_v2", (int *))                                  \
    X(SystemGetProcessName, "", (unsigned pid, char *, unsigned))                  \
    X(DeviceGetCount, "_v2", (unsigned *))                                         \
    X(DeviceGetHandleByIndex, "_v2", (unsigned, nvml_device *))                    \
    X(DeviceGetHandleByUUID, "", (const char *, nvml_device *))                    \
    X(DeviceGetHandleByPciBusId, "_v2", (const char *, nvml_device *))             \
    X(DeviceGetIndex, "", (nvml_device, unsigned *))                               \
    X(DeviceGetName, "", (nvml_device, char *, unsigned))                          \
    X(DeviceGetUUID, "", (nvml_device, char *, unsigned))                          \
    X(DeviceGetSerial, "", (nvml_device, char *, unsigned))                        \
    X(DeviceGetVbiosVersion, "", (nvml_device, char *, unsigned))                  \
    X(DeviceGetBoardPartNumber, "", (nvml_device, char *, unsigned))               \
    X(DeviceGetGspFirmwareVersion, "", (nvml_device, char *))                      \
    X(DeviceGetMinorNumber, "", (nvml_device, unsigned *))                         \
    X(DeviceGetModuleId, "", (nvml_device, unsigned *))                            \
    X(DeviceGetBrand, "", (nvml_device, unsigned *))                               \
    X(DeviceGetArchitecture, "", (nvml_device, unsigned *))                        \
    X(DeviceGetCudaComputeCapability, "", (nvml_device, int *, int *))             \
    X(DeviceGetPciInfo, "_v3", (nvml_device, nvml_pci_info *))                     \
    X(DeviceGetMemoryInfo, "_v2", (nvml_device, nvml_memory_v2 *))                 \
    X(DeviceGetBAR1MemoryInfo, "", (nvml_device, nvml_bar1_memory *))              \
    X(DeviceGetPersistenceMode, "", (nvml_device, unsigned *))                     \
    X(DeviceSetPersistenceMode, "", (nvml_device, unsigned))                       \
    X(DeviceGetFieldValues, "", (nvml_device, int, nvml_field_value *))            \
    X(DeviceGetComputeMode, "", (nvml_device, unsigned *))                         \
    X(DeviceSetComputeMode, "", (nvml_device, unsigned))                           \
    X(InternalGetExportTable, "", (const void **, const void *))                   \
    X(DeviceGetMigMode, "", (nvml_device, unsigned *, unsigned *))                 \
    X(DeviceSetMigMode, "", (nvml_device, unsigned, nvml_code *))                  \
    X(DeviceGetAddressingMode, "", (nvml_device, nvml_versioned_value *))          \
    X(DeviceGetVirtualizationMode, "", (nvml_device, unsigned *))                  \
    X(DeviceGetTemperature, "", (nvml_device, unsigned, unsigned *))               \
    X(DeviceGetPowerUsage, "", (nvml_device, unsigned *))                          \
    X(DeviceGetEnforcedPowerLimit, "", (nvml_device, unsigned *))                  \
    X(DeviceGetPowerManagementLimit, "", (nvml_device, unsigned *))                \
    X(DeviceGetPowerManagementLimitConstraints, "", (nvml_device, unsigned *, unsigned *)) \
    X(DeviceGetPerformanceState, "", (nvml_device, unsigned *))                    \
    X(DeviceGetUtilizationRates, "", (nvml_device, nvml_utilization *))            \
    X(DeviceGetClockInfo, "", (nvml_device, unsigned, unsigned *))                 \
    X(DeviceGetMaxClockInfo, "", (nvml_device, unsigned, unsigned *))              \
    X(DeviceGetFanSpeed, "", (nvml_device, unsigned *))                            \
    X(DeviceGetEccMode, "", (nvml_device, unsigned *, unsigned *))                 \
    X(DeviceGetTotalEccErrors, "", (nvml_device, unsigned, unsigned, uint64_t *))  \
    X(DeviceGetCurrPcieLinkGeneration, "", (nvml_device, unsigned *))              \
    X(DeviceGetMaxPcieLinkGeneration, "", (nvml_device, unsigned *))               \
    X(DeviceGetCurrPcieLinkWidth, "", (nvml_device, unsigned *))                   \
    X(DeviceGetMaxPcieLinkWidth, "", (nvml_device, unsigned *))                    \
    X(DeviceGetDisplayActive, "", (nvml_device, unsigned *))                       \
    X(DeviceGetGpuFabricInfoV, "", (nvml_device, nvml_fabric_info_v2 *))           \
    X(DeviceGetMaxMigDeviceCount, "", (nvml_device, unsigned *))                   \
    X(DeviceGetMigDeviceHandleByIndex, "", (nvml_device, unsigned, nvml_device *)) \
    X(DeviceGetGpuInstanceId, "", (nvml_device, unsigned *))                       \
    X(DeviceGetComputeInstanceId, "", (nvml_device, unsigned *))                   \
    X(DeviceGetAttributes, "_v2", (nvml_device, nvml_device_attributes *))         \
    X(DeviceGetGpuInstanceProfileInfoV, "", (nvml_device, unsigned, nvml_gi_profile_v2 *)) \
    X(DeviceGetGpuInstancePossiblePlacements, "_v2", (nvml_device, unsigned, nvml_placement *, unsigned *)) \
    X(DeviceGetGpuInstanceRemainingCapacity, "", (nvml_device, unsigned, unsigned *)) \
    X(DeviceGetGpuInstances, "", (nvml_device, unsigned, void **, unsigned *))     \
    X(DeviceCreateGpuInstance, "", (nvml_device, unsigned, void **))               \
    X(DeviceCreateGpuInstanceWithPlacement, "", (nvml_device, unsigned, const nvml_placement *, void **)) \
    X(GpuInstanceGetInfo, "", (void *, nvml_gi_info *))                            \
    X(GpuInstanceDestroy, "", (void *))                                            \
    X(GpuInstanceGetComputeInstanceProfileInfoV, "", (void *, unsigned, unsigned, nvml_ci_profile_v2 *)) \
    X(GpuInstanceGetComputeInstanceRemainingCapacity, "", (void *, unsigned, unsigned *)) \
    X(GpuInstanceGetComputeInstances, "", (void *, unsigned, void **, unsigned *)) \
    X(GpuInstanceCreateComputeInstance, "", (void *, unsigned, void **))           \
    X(ComputeInstanceGetInfo, "_v2", (void *, nvml_ci_info *))                     \
    X(ComputeInstanceDestroy, "", (void *))                                        \
    X(DeviceGetComputeRunningProcesses, "_v3", (nvml_device, unsigned *, nvml_process *))

struct nvml {
    const char *(*ErrorString)(nvml_code);
#define DECLARE(name, suffix, arguments) nvml_code(*name) arguments;
    NVML_FUNCTIONS(DECLARE)
#undef DECLARE
};

extern struct nvml nvml;

/* What the library has for this program alone; bound by nvml_bind_private after the init. */
extern const struct private_table *nvml_private;
nvml_code nvml_bind_private(void);

/* Loads the library that belongs to this program: the one in its own driver root, else the loader's choice. */
nvml_code nvml_load(void);
