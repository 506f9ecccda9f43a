// SPDX-License-Identifier: Apache-2.0

/* Modes of a GPU: those that can be set live in the shared state (nvml-simulator.md §6.3). */
#include "protocol.h"
#include "sim.h"

/* ---- persistence: nvidia-persistenced where its socket is, else the kernel module (§17) ---------------------- */

/* False: no daemon answers that knows the GPU. */
static bool ask_persistenced(const struct gpu *gpu, unsigned procedure, uint32_t *mode, enum pd_status *status)
{
    struct pd_gpu asked = {gpu->spec->pci_domain, gpu->spec->pci_bus, gpu->spec->pci_device};
    return pd_ask(procedure, &asked, mode, status) && *status != PD_NOT_FOUND;
}

EXPORT nvml_code nvmlDeviceGetPersistenceMode(nvml_device device, unsigned *mode)
{
    CALL(nvmlDeviceGetPersistenceMode);
    REQUIRE_POINTER(mode);
    uint32_t found;
    enum pd_status status;
    GPU(device);
    *mode = gpu.now.persistence;
    if (ask_persistenced(&gpu, PD_GET_MODE, &found, &status) && status == PD_SUCCESS)
        *mode |= found;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceSetPersistenceMode(nvml_device device, unsigned mode)
{
    struct transaction change;
    CALL(nvmlDeviceSetPersistenceMode);
    REQUIRE(mode <= 1, NVML_INVALID_ARGUMENT);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
    uint32_t wanted = mode;
    enum pd_status status;
    if (ask_persistenced(&gpu, PD_SET_MODE, &wanted, &status)) {
        REQUIRE(status == PD_SUCCESS, NVML_UNKNOWN);
        REQUIRE(mode == 0 && gpu.now.persistence, NVML_SUCCESS); /* what the module keeps goes, too */
    }
    REQUIRE_OK(transaction_begin(&change));
    change.next->gpus[gpu.number].persistence = mode;
    transaction_commit(&change);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetComputeMode(nvml_device device, unsigned *mode)
{
    CALL(nvmlDeviceGetComputeMode);
    REQUIRE_POINTER(mode);
    GPU(device);
    *mode = gpu.now.compute_mode;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceSetComputeMode(nvml_device device, unsigned mode)
{
    struct transaction change;
    CALL(nvmlDeviceSetComputeMode);
    REQUIRE(mode <= NVML_COMPUTE_EXCLUSIVE_PROCESS, NVML_INVALID_ARGUMENT);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
    REQUIRE(mode != NVML_COMPUTE_EXCLUSIVE_THREAD && !gpu.now.mig_mode, NVML_NOT_SUPPORTED);
    REQUIRE_OK(transaction_begin(&change));
    change.next->gpus[gpu.number].compute_mode = mode;
    transaction_commit(&change);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetAddressingMode(nvml_device device, nvml_versioned_value *mode)
{
    CALL(nvmlDeviceGetAddressingMode);
    REQUIRE_POINTER(mode);
    REQUIRE_VERSION(mode, 1);
    GPU(device);
    RETURN(answer_number(&mode->value, gpu.spec->addressing));
}

EXPORT nvml_code nvmlDeviceGetVirtualizationMode(nvml_device device, unsigned *mode)
{
    CALL(nvmlDeviceGetVirtualizationMode);
    REQUIRE_POINTER(mode);
    DEVICE(device);
    *mode = gpu.spec->virtualization;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetC2cModeInfoV(nvml_device device, nvml_c2c_info *info)
{
    CALL(nvmlDeviceGetC2cModeInfoV);
    REQUIRE_POINTER(info);
    GPU(device);
    RETURN(answer_number(&info->enabled, gpu.spec->c2c));
}

EXPORT nvml_code nvmlDeviceGetCapabilities(nvml_device device, nvml_versioned_value *capabilities)
{
    CALL(nvmlDeviceGetCapabilities);
    REQUIRE_POINTER(capabilities);
    REQUIRE_VERSION(capabilities, 1);
    GPU(device);
    capabilities->value = 0; /* the one known bit, extended GPU memory, is a choice of the machine's owner */
    RETURN(NVML_SUCCESS);
}
