// SPDX-License-Identifier: Apache-2.0

/* The exit status for an NVML code: the code itself where the real program documents it. */
#include "smi.h"

int exit_code_of(nvml_code code)
{
    switch ((int)code) {
    case NVML_SUCCESS:
    case NVML_INVALID_ARGUMENT:
    case NVML_NOT_SUPPORTED:
    case NVML_NO_PERMISSION:
    case NVML_NOT_FOUND:
    case NVML_DRIVER_NOT_LOADED:
    case NVML_LIBRARY_NOT_FOUND:
    case 14: /* corrupted infoROM */
    case NVML_GPU_IS_LOST:
        return (int)code;
    default:
        return EXIT_OTHER;
    }
}
