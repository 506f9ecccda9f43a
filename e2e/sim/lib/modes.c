// SPDX-License-Identifier: Apache-2.0

/* Modes of a GPU: those that can be set live in the shared state (nvml-simulator.md §6.3). */
#include "sim.h"

EXPORT nvml_code nvmlDeviceGetPersistenceMode(nvml_device device, unsigned *mode)
{
    CALL(nvmlDeviceGetPersistenceMode);
    REQUIRE_POINTER(mode);
    GPU(device);
    *mode = gpu.now.persistence;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceSetPersistenceMode(nvml_device device, unsigned mode)
{
    struct transaction change;
    CALL(nvmlDeviceSetPersistenceMode);
    REQUIRE(mode <= 1, NVML_INVALID_ARGUMENT);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
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
