// SPDX-License-Identifier: Apache-2.0

/* What every change of MIG instances has in common (nvml-simulator.md §6.4, §8, §14.4). */
#include "mig.h"

nvml_code mig_change_begin(struct mig_change *change, const struct gpu *gpu)
{
    nvml_code code = transaction_begin(&change->transaction);
    if (code != NVML_SUCCESS)
        return code;
    change->gpu = gpu->number;
    change->state = &change->transaction.next->gpus[gpu->number];
    change->tables = &change->transaction.next->tables[gpu->number];
    if (change->state->lost)
        return mig_change_end(change, NVML_GPU_IS_LOST);
    return change->state->mig_mode ? NVML_SUCCESS : mig_change_end(change, NVML_NOT_SUPPORTED);
}

nvml_code mig_change_end(struct mig_change *change, nvml_code code)
{
    if (code == NVML_SUCCESS)
        code = write_capability_files(change->transaction.next, change->gpu);
    if (code != NVML_SUCCESS) {
        transaction_cancel(&change->transaction);
        return code;
    }
    append_event(&change->transaction, change->gpu, NVML_EVENT_MIG_CHANGE);
    transaction_commit(&change->transaction);
    return NVML_SUCCESS;
}

static bool uses(const struct sim_process *process, unsigned gpu_instance)
{
    return process->pid != 0 && process->gpu_instance == gpu_instance;
}

bool is_used(const struct sim_gpu_tables *tables, unsigned gpu_instance)
{
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        if (uses(&tables->processes[i], gpu_instance))
            return true;
    return false;
}

bool is_compute_used(const struct sim_gpu_tables *tables, unsigned gpu_instance, unsigned compute_instance)
{
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        if (uses(&tables->processes[i], gpu_instance) && tables->processes[i].compute_instance == compute_instance)
            return true;
    return false;
}
