/* Memory of a GPU, and the processes that use it (spec §6.3). */
#include "sim.h"

static uint64_t bytes(uint64_t mib)
{
    return mib << 20;
}

EXPORT nvml_code nvmlDeviceGetMemoryInfo(nvml_device device, nvml_memory *memory)
{
    CALL(nvmlDeviceGetMemoryInfo);
    REQUIRE_POINTER(memory);
    GPU(device);
    REQUIRE(gpu.spec->memory_in_nvml, NVML_NOT_SUPPORTED);
    memory->total = bytes(gpu.spec->memory_mib);
    memory->used = bytes(gpu.spec->reserved_mib);
    memory->free = memory->total - memory->used;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetMemoryInfo_v2(nvml_device device, nvml_memory_v2 *memory)
{
    CALL(nvmlDeviceGetMemoryInfo_v2);
    REQUIRE_POINTER(memory);
    REQUIRE_VERSION(memory, 2);
    GPU(device);
    REQUIRE(gpu.spec->memory_in_nvml, NVML_NOT_SUPPORTED);
    memory->total = bytes(gpu.spec->memory_mib);
    memory->reserved = bytes(gpu.spec->reserved_mib);
    memory->used = 0;
    memory->free = memory->total - memory->reserved;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetBAR1MemoryInfo(nvml_device device, nvml_bar1_memory *memory)
{
    CALL(nvmlDeviceGetBAR1MemoryInfo);
    REQUIRE_POINTER(memory);
    GPU(device);
    memory->total = memory->free = bytes(gpu.spec->bar1_mib);
    memory->used = 0;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetMemoryBusWidth(nvml_device device, unsigned *bits)
{
    CALL(nvmlDeviceGetMemoryBusWidth);
    REQUIRE_POINTER(bits);
    GPU(device);
    *bits = gpu.spec->memory_bus_bits;
    RETURN(NVML_SUCCESS);
}

/* Nothing computes on a simulated GPU, so every list of processes is empty, in each of the layouts it has had. */
#define PROCESS_LIST(name, layout)                                              \
    EXPORT nvml_code name(nvml_device device, unsigned *count, layout *processes) \
    {                                                                           \
        CALL(name);                                                             \
        REQUIRE_POINTER(count);                                                 \
        REQUIRE(*count == 0 || processes != NULL, NVML_INVALID_ARGUMENT);       \
        GPU(device);                                                            \
        *count = 0;                                                             \
        RETURN(NVML_SUCCESS);                                                   \
    }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvml_process_v1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvml_process)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvml_process)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvml_process_v1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvml_process)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvml_process)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvml_process_v1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvml_process)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvml_process)
ALIAS(nvmlDeviceGetComputeRunningProcesses_v1, nvmlDeviceGetComputeRunningProcesses);
ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v1, nvmlDeviceGetGraphicsRunningProcesses);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v1, nvmlDeviceGetMPSComputeRunningProcesses);
