// SPDX-License-Identifier: Apache-2.0

/* What boots and stops take away from GPUs (nvml-simulator.md §10.6, §10.7). */
#include "sim.h"

/* A GPU as configured, but for what its firmware keeps and what tells its instances from earlier ones. */
static void boot_gpu(struct sim_node_state *next, const struct sim_node_state *initial, unsigned gpu, bool keeps_mig_mode)
{
    struct sim_gpu_state before = next->gpus[gpu], *after = &next->gpus[gpu];
    *after = initial->gpus[gpu];
    after->minor = before.minor;
    after->mig_mode = after->mig_pending = keeps_mig_mode ? before.mig_pending : 0;
    after->incarnation = before.incarnation + 1;
    after->instances_made = before.instances_made;
    after->initialisation_ms = before.initialisation_ms;
    after->fabric_since_ns = description()->fabric_bring_up_ms > 0 ? now_ns() : 0;
    memcpy(after->ecc_aggregate, before.ecc_aggregate, sizeof after->ecc_aggregate);
    if (before.row_remapping == SIM_REMAPPING_FAILED)
        after->row_remapping = before.row_remapping;
    memset(&next->tables[gpu], 0, sizeof next->tables[gpu]);
}

/* Persistence mode has the GPU open as well. */
static bool is_open(unsigned gpu, const struct sim_node_state *now)
{
    bool open = now->gpus[gpu].persistence && description()->persistence_blocks_reset;
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        open |= now->tables[gpu].processes[i].pid != 0;
    return open || has_contexts(gpu) || has_other_clients(gpu) || is_locked(SIM_SESSION_LOCK, 1);
}

nvml_code reset_gpu(unsigned gpu)
{
    struct transaction change;
    nvml_code code = transaction_begin(&change);
    if (code != NVML_SUCCESS)
        return code;
    if (is_open(gpu, change.next)) {
        transaction_cancel(&change);
        return NVML_IN_USE;
    }
    struct sim_gpu_state before = change.next->gpus[gpu];
    boot_gpu(change.next, configured_state(), gpu, true);
    change.next->gpus[gpu].bound_to_nvidia = before.bound_to_nvidia;
    memcpy(change.next->gpus[gpu].driver, before.driver, sizeof before.driver);
    code = write_capability_files(change.next, gpu);
    transaction_commit(&change);
    return code;
}

nvml_code boot(const struct boot_id *boot_id)
{
    struct transaction change;
    nvml_code code = transaction_begin(&change);
    if (code != NVML_SUCCESS)
        return code;
    const struct sim_node_state *initial = configured_state();
    memcpy(change.next->boot_id, boot_id->text, sizeof change.next->boot_id);
    change.next->module_loaded = initial->module_loaded;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++) {
        boot_gpu(change.next, initial, gpu, description()->gpus[gpu].mig_mode_outlives_boots);
        change.next->gpus[gpu].minor = initial->gpus[gpu].minor;
        write_capability_files(change.next, gpu); /* a /proc that cannot be written does not keep a node from booting */
    }
    change.next->vfio_modules = initial->vfio_modules;
    memcpy(change.next->pci_functions, initial->pci_functions, sizeof initial->pci_functions);
    memcpy(change.next->pci_ids, initial->pci_ids, sizeof initial->pci_ids);
    discard_events();
    transaction_commit(&change);
    return NVML_SUCCESS;
}
