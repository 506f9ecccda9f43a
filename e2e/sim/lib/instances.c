// SPDX-License-Identifier: Apache-2.0

/*
 * Handles of MIG instances (nvml-simulator.md §7.10): numbers that name the instance and no other before or after it, so
 * that none is ever used again and nothing has to be kept for them. Where the node file has handles used again, they
 * name the place of the instance only. Their highest bits are those of no address, and nobody looks behind them.
 */
#include "sim.h"

enum { TAG = 0x4d49, INCARNATION_BITS = 35, COMPUTE_BITS = 3, INSTANCE_BITS = 4, GPU_BITS = 4, KIND_BITS = 2 };
_Static_assert(SIM_MAX_COMPUTE_INSTANCES <= 1 << COMPUTE_BITS, "compute instances do not fit into a handle");
_Static_assert(SIM_MAX_GPU_INSTANCES <= 1 << INSTANCE_BITS, "GPU instances do not fit into a handle");
_Static_assert(SIM_MAX_GPUS <= 1 << GPU_BITS, "GPUs do not fit into a handle");

static void put(uint64_t *handle, uint64_t value, unsigned bits)
{
    *handle = *handle << bits | value;
}

static uint64_t take(uint64_t *handle, unsigned bits)
{
    uint64_t value = *handle & ((UINT64_C(1) << bits) - 1);
    *handle >>= bits;
    return value;
}

void *instance_handle(const struct instance *instance)
{
    uint64_t handle = TAG;
    put(&handle, instance->kind, KIND_BITS);
    put(&handle, instance->gpu, GPU_BITS);
    put(&handle, instance->gpu_instance, INSTANCE_BITS);
    put(&handle, instance->compute_instance, COMPUTE_BITS);
    put(&handle, description()->mig_reuses_handles ? 0 : instance->incarnation, INCARNATION_BITS);
    return (void *)(uintptr_t)handle;
}

bool instance_of(const void *pointer, enum instance_kind kind, struct instance *instance)
{
    uint64_t handle = (uintptr_t)pointer;
    instance->incarnation = take(&handle, INCARNATION_BITS);
    instance->compute_instance = (unsigned)take(&handle, COMPUTE_BITS);
    instance->gpu_instance = (unsigned)take(&handle, INSTANCE_BITS);
    instance->gpu = (unsigned)take(&handle, GPU_BITS);
    instance->kind = (enum instance_kind)take(&handle, KIND_BITS);
    return handle == TAG && instance->kind == kind;
}

static bool is_incarnation(uint64_t named, uint64_t existing)
{
    return description()->mig_reuses_handles || named == existing;
}

bool instance_is_in(const struct instance *instance, const struct sim_gpu_instance *record)
{
    if (!record->in_use || instance->kind == GPU_INSTANCE)
        return record->in_use && is_incarnation(instance->incarnation, record->incarnation);
    const struct sim_compute_instance *compute = &record->compute[instance->compute_instance];
    return compute->in_use && is_incarnation(instance->incarnation, compute->incarnation);
}

bool instance_exists(const struct instance *instance, struct sim_gpu_instance *record)
{
    if (instance->gpu >= description()->gpu_count)
        return false;
    *record = read_gpu_instance(instance->gpu, instance->gpu_instance);
    return instance_is_in(instance, record);
}
