// SPDX-License-Identifier: Apache-2.0

/*
 * What nvidia-smi and CUDA need beyond the public functions. The real one gets such functions from nvmlInternalGetExportTable,
 * too; the simulated one asks for a table of its own (nvml-simulator.md §15).
 */
#include "private_table.h"

#include <stdio.h>

#include "sim.h"

static nvml_code begin_command(const char *program, const char *command)
{
    char function[64];
    CALL(nvmlInternalGetExportTable);
    REQUIRE(program != NULL && command != NULL, NVML_INVALID_ARGUMENT);
    snprintf(function, sizeof function, "%s:%s", program, command);
    RETURN(apply_rules_of(&call, function, SIM_ANY_GPU));
}

static nvml_code get_time_slice(nvml_device device, unsigned *time_slice)
{
    CALL(nvmlInternalGetExportTable);
    REQUIRE_POINTER(time_slice);
    GPU(device);
    *time_slice = gpu.now.time_slice;
    RETURN(NVML_SUCCESS);
}

static nvml_code set_time_slice(nvml_device device, unsigned time_slice)
{
    struct transaction change;
    CALL(nvmlInternalGetExportTable);
    REQUIRE(time_slice <= TIME_SLICE_LONG, NVML_INVALID_ARGUMENT);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
    REQUIRE_OK(transaction_begin(&change));
    change.next->gpus[gpu.number].time_slice = time_slice;
    transaction_commit(&change);
    RETURN(NVML_SUCCESS);
}

static nvml_code reset(nvml_device device)
{
    CALL(nvmlInternalGetExportTable);
    GPU(device);
    REQUIRE_OK(call_needs_privilege());
    RETURN(reset_gpu(gpu.number));
}

EXPORT nvml_code nvmlInternalGetExportTable(const void **table, const void *id)
{
    static const struct private_table private_table = {
        sizeof private_table, begin_command, get_time_slice, set_time_slice,
        open_context, close_context, reset};
    static const uint8_t private_table_id[16] = PRIVATE_TABLE_ID;
    CALL(nvmlInternalGetExportTable);
    NODE();
    REQUIRE(table != NULL && id != NULL && memcmp(id, private_table_id, sizeof private_table_id) == 0,
            NVML_NOT_SUPPORTED);
    *table = &private_table;
    RETURN(NVML_SUCCESS);
}
