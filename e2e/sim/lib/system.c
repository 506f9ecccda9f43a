// SPDX-License-Identifier: Apache-2.0

/* Questions to the driver as a whole, and the words for return codes (nvml-simulator.md §6.1). */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "sim.h"

EXPORT nvml_code nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    CALL(nvmlSystemGetDriverVersion);
    REQUIRE_POINTER(version);
    NODE();
    RETURN(answer_text(version, length, description()->driver_version));
}

EXPORT nvml_code nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    CALL(nvmlSystemGetNVMLVersion);
    REQUIRE_POINTER(version);
    NODE();
    RETURN(answer_text(version, length, description()->nvml_version));
}

EXPORT nvml_code nvmlSystemGetCudaDriverVersion(int *version)
{
    CALL(nvmlSystemGetCudaDriverVersion);
    REQUIRE_POINTER(version);
    NODE();
    *version = (int)description()->cuda_version;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    CALL(nvmlSystemGetCudaDriverVersion_v2);
    REQUIRE_POINTER(version);
    NODE();
    *version = (int)description()->cuda_version;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlSystemGetDriverBranch(nvml_driver_branch *branch, unsigned length)
{
    CALL(nvmlSystemGetDriverBranch);
    REQUIRE_POINTER(branch);
    REQUIRE_VERSION(branch, 1);
    NODE();
    unsigned room = length < sizeof branch->branch ? length : sizeof branch->branch;
    RETURN(answer_text(branch->branch, room, description()->driver_branch));
}

EXPORT nvml_code nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[32], text[64];
    CALL(nvmlSystemGetProcessName);
    REQUIRE_POINTER(name);
    NODE();
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(file >= 0, NVML_NOT_FOUND);
    ssize_t size = read(file, text, sizeof text);
    close(file);
    REQUIRE(size > 0, NVML_NOT_FOUND);
    text[size - 1] = '\0'; /* in place of the newline */
    RETURN(answer_text(name, length, text));
}

/* pynvml's own words where it has some, so that logs look the same whoever resolves a code. */
EXPORT const char *nvmlErrorString(int code)
{
    static const char *const words[] = {
        [0] = "Success",
        [1] = "Uninitialized",
        [2] = "Invalid Argument",
        [3] = "Not Supported",
        [4] = "Insufficient Permissions",
        [5] = "Already Initialized",
        [6] = "Not Found",
        [7] = "Insufficient Size",
        [8] = "Insufficient External Power",
        [9] = "Driver Not Loaded",
        [10] = "Timeout",
        [11] = "Interrupt Request Issue",
        [12] = "NVML Shared Library Not Found",
        [13] = "Function Not Found",
        [14] = "Corrupted infoROM",
        [15] = "GPU is lost",
        [16] = "GPU requires restart",
        [17] = "The operating system has blocked the request.",
        [18] = "RM has detected an NVML/RM version mismatch.",
        [19] = "In use by another client",
        [20] = "Insufficient Memory",
        [21] = "No data",
        [22] = "Not supported with vGPU ECC",
        [23] = "Insufficient resources",
        [24] = "Frequency not supported",
        [25] = "Argument version mismatch",
        [26] = "Deprecated",
        [27] = "Not ready",
        [28] = "GPU not found",
        [29] = "Invalid state",
        [30] = "Reset type not supported",
    };
    bool known = code >= 0 && (size_t)code < sizeof words / sizeof words[0];
    return known ? words[code] : "Unknown Error";
}
