// SPDX-License-Identifier: Apache-2.0

/*
 * Contexts: which processes compute on a GPU or a MIG device, and what its compute mode lets them (nvml-simulator.md
 * §17). There is no computing here; a context is a lock that lasts as long as its process at most.
 */
#include <fcntl.h>

#include "sim.h"

enum { INSTANCES_PER_GPU = SIM_MAX_GPU_INSTANCES * SIM_MAX_COMPUTE_INSTANCES };

static unsigned byte_of(unsigned gpu, unsigned gpu_instance, unsigned compute_instance)
{
    return SIM_INSTANCE_CONTEXT_LOCKS + gpu * INSTANCES_PER_GPU + gpu_instance * SIM_MAX_COMPUTE_INSTANCES +
           compute_instance;
}

bool has_contexts(unsigned gpu)
{
    return is_locked(SIM_CONTEXT_LOCKS + gpu, 1) || is_locked(byte_of(gpu, 0, 0), INSTANCES_PER_GPU);
}

bool has_contexts_in(unsigned gpu, unsigned gpu_instance)
{
    return is_locked(byte_of(gpu, gpu_instance, 0), SIM_MAX_COMPUTE_INSTANCES);
}

bool has_contexts_on(unsigned gpu, unsigned gpu_instance, unsigned compute_instance)
{
    return is_locked(byte_of(gpu, gpu_instance, compute_instance), 1);
}

static unsigned lock_of_context(const struct gpu *gpu)
{
    return gpu->is_mig ? byte_of(gpu->number, gpu->instance.gpu_instance, gpu->instance.compute_instance)
                       : SIM_CONTEXT_LOCKS + gpu->number;
}

/* Locks before it looks, so that two processes that cannot exclude each other both fail rather than both compute. */
static nvml_code open_whole(const struct gpu *gpu)
{
    unsigned context = lock_of_context(gpu), creation = SIM_CONTEXT_CREATION_LOCKS + gpu->number;
    set_lock(F_WRLCK, creation);
    set_lock(F_RDLCK, context);
    unsigned mode = read_gpu(gpu->number).compute_mode;
    bool taken = mode == NVML_COMPUTE_EXCLUSIVE_PROCESS && is_locked(context, 1);
    bool forbidden = taken || mode == NVML_COMPUTE_PROHIBITED;
    if (forbidden)
        set_lock(F_UNLCK, context);
    set_lock(F_UNLCK, creation);
    return forbidden ? NVML_IN_USE : NVML_SUCCESS;
}

nvml_code open_context(nvml_device device)
{
    CALL(nvmlInternalGetExportTable);
    DEVICE(device);
    REQUIRE(gpu.is_mig || !gpu.now.mig_mode, NVML_NOT_SUPPORTED);
    if (!gpu.is_mig)
        RETURN(open_whole(&gpu));
    set_lock(F_RDLCK, lock_of_context(&gpu));
    RETURN(NVML_SUCCESS);
}

nvml_code close_context(nvml_device device)
{
    CALL(nvmlInternalGetExportTable);
    DEVICE(device);
    set_lock(F_UNLCK, lock_of_context(&gpu));
    RETURN(NVML_SUCCESS);
}
