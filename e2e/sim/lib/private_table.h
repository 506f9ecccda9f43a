// SPDX-License-Identifier: Apache-2.0

/* The functions that the library has for the driver's other parts alone, as nvmlInternalGetExportTable(&table, PRIVATE_TABLE_ID). */
#pragma once

#include "nvml_abi.h"

#define PRIVATE_TABLE_ID {'n', 'v', 'd', 'r', 'a', '-', 's', 'i', 'm', '-', 's', 'm', 'i', '-', '0', '1'}

enum { TIME_SLICE_DEFAULT = 0, TIME_SLICE_SHORT, TIME_SLICE_MEDIUM, TIME_SLICE_LONG };

struct private_table {
    size_t size;
    /* Stops, or fails, as the fault rules for `<program>:<command>` say. */
    nvml_code (*begin_command)(const char *program, const char *command);
    nvml_code (*get_time_slice)(nvml_device device, unsigned *time_slice);
    nvml_code (*set_time_slice)(nvml_device device, unsigned time_slice);
    /* Of libcuda and nvidia-cuda-mps-server; see sim.h. */
    nvml_code (*open_context)(nvml_device device);
    nvml_code (*close_context)(nvml_device device);
    /* NVML_IN_USE: somebody else has the GPU open. */
    nvml_code (*reset)(nvml_device device);
};
