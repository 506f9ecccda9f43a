// SPDX-License-Identifier: Apache-2.0

/* Whether a GPU is in MIG mode, and the switch between the modes (nvml-simulator.md §7.2). */
#include "mig.h"

static bool has_mig(const struct gpu *gpu)
{
    return gpu->spec->mig_profile_count > 0 && gpu->spec->virtualization != NVML_VIRTUALIZATION_VGPU;
}

EXPORT nvml_code nvmlDeviceGetMigMode(nvml_device device, unsigned *current, unsigned *pending)
{
    CALL(nvmlDeviceGetMigMode);
    REQUIRE_POINTER(current);
    REQUIRE_POINTER(pending);
    GPU(device);
    REQUIRE(gpu.spec->mig_profile_count > 0, NVML_NOT_SUPPORTED);
    *current = gpu.now.mig_mode;
    *pending = gpu.now.mig_pending;
    RETURN(NVML_SUCCESS);
}

/* Processes keep a GPU in its mode, and instances keep it in MIG mode. */
static bool is_busy(const struct sim_gpu_tables *tables)
{
    bool busy = false;
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        busy |= tables->processes[i].pid != 0;
    for (unsigned i = 0; i < SIM_MAX_GPU_INSTANCES; i++)
        busy |= tables->instances[i].in_use != 0;
    return busy;
}

/* Whether something is in the way. On Ampere, the reset has no effect while anybody else has the GPU open. */
static bool is_in_use(const struct gpu *gpu, const struct sim_gpu_tables *tables)
{
    bool clients_block = gpu->spec->mig_mode_outlives_boots || description()->mig_clients_block_switch;
    return is_busy(tables) || has_contexts(gpu->number) || (clients_block && has_other_clients(gpu->number));
}

/* What the switch needs before it takes effect. */
static nvml_code activation_of(const struct gpu *gpu, const struct sim_gpu_tables *tables)
{
    bool needs_reset = gpu->spec->mig_mode_outlives_boots && !description()->mig_ampere_resets_itself;
    if (is_in_use(gpu, tables))
        return NVML_IN_USE;
    return needs_reset ? NVML_RESET_REQUIRED : NVML_SUCCESS;
}

static void set_mode(struct sim_gpu_state *next, unsigned mode, nvml_code activation)
{
    next->mig_pending = mode;
    if (next->mig_mode == mode || activation != NVML_SUCCESS)
        return;
    next->mig_mode = mode;
    next->incarnation++;
}

static nvml_code switch_mode(const struct call *call, const struct gpu *gpu, unsigned mode, nvml_code *activation)
{
    struct transaction change;
    nvml_code code = transaction_begin(&change);
    if (code != NVML_SUCCESS)
        return code;
    struct sim_gpu_state *next = &change.next->gpus[gpu->number];
    nvml_code status = NVML_SUCCESS;
    if (call->activation == ACTIVATION_GIVEN)
        status = call->activation_status;
    else if (next->mig_mode != mode)
        status = activation_of(gpu, &change.next->tables[gpu->number]);
    if (status == NVML_IN_USE && description()->mig_busy_fails_call && call->activation == ACTIVATION_FOUND) {
        transaction_cancel(&change);
        return NVML_IN_USE;
    }
    set_mode(next, mode, status);
    transaction_commit(&change);
    *activation = call->activation == ACTIVATION_REPORTED ? call->activation_status : status;
    return NVML_SUCCESS;
}

EXPORT nvml_code nvmlDeviceSetMigMode(nvml_device device, unsigned mode, nvml_code *activation)
{
    CALL(nvmlDeviceSetMigMode);
    REQUIRE(mode <= 1, NVML_INVALID_ARGUMENT);
    REQUIRE_POINTER(activation);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
    REQUIRE(has_mig(&gpu), NVML_NOT_SUPPORTED);
    RETURN(switch_mode(&call, &gpu, mode, activation));
}
