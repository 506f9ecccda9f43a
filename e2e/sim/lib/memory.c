// SPDX-License-Identifier: Apache-2.0

/* Memory of a GPU, and the processes that use it (nvml-simulator.md §6.3). */
#include "sim.h"

static uint64_t bytes(uint64_t mib)
{
    return mib << 20;
}

struct use {
    uint64_t total_mib, reserved_mib, used_mib; /* reserved is apart from used */
};

static nvml_code use_of(const struct gpu *gpu, struct use *use)
{
    struct sim_process processes[SIM_MAX_PROCESSES];
    if (!gpu->spec->memory_in_nvml)
        return NVML_NOT_SUPPORTED;
    *use = (struct use){gpu->spec->memory_mib, gpu->spec->reserved_mib, 0};
    if (gpu->is_mig) {
        use->reserved_mib = 0;
        return mig_memory(gpu, &use->total_mib, &use->used_mib);
    }
    read_processes(gpu->number, processes);
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        use->used_mib += processes[i].pid != 0 ? processes[i].memory_mib : 0;
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlDeviceGetMemoryInfo(nvml_device device, nvml_memory *memory)
{
    struct use use;
    CALL(nvmlDeviceGetMemoryInfo);
    REQUIRE_POINTER(memory);
    DEVICE(device);
    REQUIRE_OK(use_of(&gpu, &use));
    memory->total = bytes(use.total_mib);
    memory->used = bytes(use.reserved_mib + use.used_mib);
    memory->free = memory->total - memory->used;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetMemoryInfo_v2(nvml_device device, nvml_memory_v2 *memory)
{
    struct use use;
    CALL(nvmlDeviceGetMemoryInfo_v2);
    REQUIRE_POINTER(memory);
    REQUIRE_VERSION(memory, 2);
    DEVICE(device);
    REQUIRE_OK(use_of(&gpu, &use));
    memory->total = bytes(use.total_mib);
    memory->reserved = bytes(use.reserved_mib);
    memory->used = bytes(use.used_mib);
    memory->free = memory->total - memory->reserved - memory->used;
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

/* ---- processes ---------------------------------------------------------------------------------------- */

static bool is_listed(const struct sim_process *process, const struct gpu *gpu, unsigned kind)
{
    bool concerns = !gpu->is_mig || (process->gpu_instance == gpu->instance.gpu_instance &&
                                     process->compute_instance == gpu->instance.compute_instance);
    return process->pid != 0 && process->kind == kind && concerns;
}

/* Moves the processes to be listed to the front and counts them. */
static unsigned list_processes(const struct gpu *gpu, unsigned kind, struct sim_process list[SIM_MAX_PROCESSES])
{
    unsigned count = 0;
    read_processes(gpu->number, list);
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        if (is_listed(&list[i], gpu, kind))
            list[count++] = list[i];
    return count;
}

static void write_v1(nvml_process_v1 *out, const struct sim_process *process)
{
    *out = (nvml_process_v1){process->pid, bytes(process->memory_mib)};
}

static void write_v2(nvml_process *out, const struct sim_process *process)
{
    write_v1(&out->v1, process);
    out->gpu_instance = process->gpu_instance;
    out->compute_instance = process->compute_instance;
}

/* `count` says how many fit, and then how many there are. */
#define PROCESS_LIST(name, kind, layout, write)                                 \
    EXPORT nvml_code name(nvml_device device, unsigned *count, layout *processes) \
    {                                                                           \
        struct sim_process list[SIM_MAX_PROCESSES];                             \
        CALL(name);                                                             \
        REQUIRE_POINTER(count);                                                 \
        REQUIRE(*count == 0 || processes != NULL, NVML_INVALID_ARGUMENT);       \
        DEVICE(device);                                                         \
        unsigned room = *count;                                                 \
        *count = list_processes(&gpu, kind, list);                              \
        REQUIRE(room >= *count, NVML_INSUFFICIENT_SIZE);                        \
        for (unsigned i = 0; i < *count; i++)                                   \
            write(&processes[i], &list[i]);                                     \
        RETURN(NVML_SUCCESS);                                                   \
    }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, SIM_PROCESS_COMPUTE, nvml_process_v1, write_v1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, SIM_PROCESS_COMPUTE, nvml_process, write_v2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, SIM_PROCESS_COMPUTE, nvml_process, write_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, SIM_PROCESS_GRAPHICS, nvml_process_v1, write_v1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, SIM_PROCESS_GRAPHICS, nvml_process, write_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, SIM_PROCESS_GRAPHICS, nvml_process, write_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, SIM_PROCESS_MPS, nvml_process_v1, write_v1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, SIM_PROCESS_MPS, nvml_process, write_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, SIM_PROCESS_MPS, nvml_process, write_v2)
ALIAS(nvmlDeviceGetComputeRunningProcesses_v1, nvmlDeviceGetComputeRunningProcesses);
ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v1, nvmlDeviceGetGraphicsRunningProcesses);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v1, nvmlDeviceGetMPSComputeRunningProcesses);
