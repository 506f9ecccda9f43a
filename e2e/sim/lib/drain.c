// SPDX-License-Identifier: Apache-2.0

/*
 * The drain state of a GPU, and its removal.
 *
 * A drained GPU keeps its clients and takes no new ones; sessions that begin do not list it. The state belongs to the
 * driver's record of the GPU, which an unbind throws away, and a second request for it is refused, so that of two
 * administrators one learns of the other (NVIDIA/open-gpu-kernel-modules, src/nvidia/src/kernel/gpu_mgr/gpu_mgr.c,
 * gpumgrModifyGpuDrainState and gpumgrQueryGpuDrainState).
 */
#include <string.h>

#include "sim.h"

enum { PASCAL = 4 };
enum { PHASE_ABSENT = 0, PHASE_DRIVERLESS = 1 }; /* pci.bus.Phase */

/* The GPU with this address; a function that the driver does not have is none. */
static nvml_code find(struct call *call, const nvml_pci_info *pci, unsigned *found)
{
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++) {
        const struct sim_gpu_spec *spec = &description()->gpus[gpu];
        bool is_it = spec->pci_domain == pci->domain && spec->pci_bus == pci->bus && spec->pci_device == pci->device;
        if (!is_it || !read_gpu(gpu).bound_to_nvidia)
            continue;
        *found = gpu;
        return spec->architecture < PASCAL ? NVML_NOT_SUPPORTED : ask_driver(call, (int)gpu);
    }
    nvml_code code = ask_driver(call, SIM_ANY_GPU);
    return code == NVML_SUCCESS ? NVML_NOT_FOUND : code;
}

EXPORT nvml_code nvmlDeviceQueryDrainState(nvml_pci_info *pci, unsigned *state)
{
    unsigned gpu;
    CALL(nvmlDeviceQueryDrainState);
    REQUIRE_POINTER(pci);
    REQUIRE_POINTER(state);
    REQUIRE_OK(find(&call, pci, &gpu));
    *state = read_gpu(gpu).drained;
    RETURN(NVML_SUCCESS);
}

static nvml_code change_drain_state(unsigned gpu, unsigned state)
{
    struct transaction change;
    nvml_code code = transaction_begin(&change);
    if (code != NVML_SUCCESS)
        return code;
    struct sim_gpu_state *next = &change.next->gpus[gpu];
    if (state && (next->persistence || next->drained)) {
        transaction_cancel(&change);
        return NVML_IN_USE;
    }
    next->drained = state;
    transaction_commit(&change);
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlDeviceModifyDrainState(nvml_pci_info *pci, unsigned state)
{
    unsigned gpu;
    CALL(nvmlDeviceModifyDrainState);
    REQUIRE_POINTER(pci);
    REQUIRE(state <= 1, NVML_INVALID_ARGUMENT);
    REQUIRE_OK(find(&call, pci, &gpu));
    REQUIRE_OK(call_needs_privilege());
    RETURN(change_drain_state(gpu, state));
}

/* ---- removal -------------------------------------------------------------------------------------------------- */

/* The function in sysfs: without a driver, or off the bus until a rescan finds it. */
static void leave_bus(struct sim_node_state *next, unsigned gpu, bool stays)
{
    const struct sim_gpu_spec *spec = &description()->gpus[gpu];
    char address[sizeof next->pci_functions[0].address];
    snprintf(address, sizeof address, "%04x:%02x:%02x.0", spec->pci_domain & 0xffff, spec->pci_bus & 0xff,
             spec->pci_device & 0xff);
    for (unsigned i = 0; i < next->pci_function_count; i++) {
        struct sim_pci_function *function = &next->pci_functions[i];
        if (strcmp(function->address, address) != 0)
            continue;
        function->phase = stays ? PHASE_DRIVERLESS : PHASE_ABSENT;
        memset(function->driver, 0, sizeof function->driver);
        if (!stays)
            memset(function->override, 0, sizeof function->override);
    }
}

static bool is_in_use(unsigned gpu, const struct sim_node_state *now)
{
    bool used = now->gpus[gpu].persistence || now->gpus[gpu].kernel_clients || now->gpus[gpu].removing;
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        used |= now->tables[gpu].processes[i].pid != 0;
    return used || has_contexts(gpu) || has_other_clients(gpu);
}

static nvml_code remove_gpu(unsigned gpu, bool stays)
{
    struct transaction change;
    nvml_code code = transaction_begin(&change);
    if (code != NVML_SUCCESS)
        return code;
    if (is_in_use(gpu, change.next)) { /* it is drained as before */
        transaction_cancel(&change);
        return NVML_IN_USE;
    }
    struct sim_gpu_state *next = &change.next->gpus[gpu];
    memset(&change.next->tables[gpu], 0, sizeof change.next->tables[gpu]);
    code = write_capability_files(change.next, gpu);
    next->bound_to_nvidia = next->drained = 0;
    next->unplugged = stays ? 0 : SIM_OFF_BUS;
    memset(next->driver, 0, sizeof next->driver);
    leave_bus(change.next, gpu, stays);
    append_event(&change, gpu, SIM_SYSTEM_EVENT_UNBIND);
    transaction_commit(&change);
    release_gpu(gpu); /* what this process had open does not count */
    return code;
}

static nvml_code remove_by(struct call *call, const nvml_pci_info *pci, unsigned gpu_state, unsigned link_state)
{
    unsigned gpu;
    if (pci == NULL || gpu_state > NVML_DETACH_GPU_REMOVE || link_state > NVML_PCIE_LINK_SHUT_DOWN)
        return NVML_INVALID_ARGUMENT;
    nvml_code code = find(call, pci, &gpu);
    if (code == NVML_SUCCESS)
        code = call_needs_privilege();
    return code == NVML_SUCCESS ? remove_gpu(gpu, gpu_state == NVML_DETACH_GPU_KEEP) : code;
}

EXPORT nvml_code nvmlDeviceRemoveGpu_v2(nvml_pci_info *pci, unsigned gpu_state, unsigned link_state)
{
    CALL(nvmlDeviceRemoveGpu_v2);
    RETURN(remove_by(&call, pci, gpu_state, link_state));
}

EXPORT nvml_code nvmlDeviceRemoveGpu(nvml_pci_info *pci)
{
    CALL(nvmlDeviceRemoveGpu);
    RETURN(remove_by(&call, pci, NVML_DETACH_GPU_REMOVE, NVML_PCIE_LINK_KEEP));
}
ALIAS(nvmlDeviceRemoveGpu_v1, nvmlDeviceRemoveGpu);
