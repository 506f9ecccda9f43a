// SPDX-License-Identifier: Apache-2.0

/*
 * The functions of libcuda.so.1 that programs call to ask "is there a GPU, and may I compute on it?": the answers are
 * NVML's, so a container sees the GPUs whose device nodes it was given. There is no computing here.
 *
 * As the real one, it needs /dev/nvidia-uvm, and fails without saying so. Where there are no device nodes at all, the
 * node is one of files only, and its programs are not containers.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

enum attribute { MULTIPROCESSOR_COUNT = 16, COMPUTE_MODE = 20, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

struct cuda_devices devices;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool is_loaded, is_started;

bool is_initialized(void)
{
    return is_started;
}

/* As the real one: a driver that does not answer is told from a library that is not there. */
static enum cuda_result load(void)
{
    void *library = is_loaded ? NULL : dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (is_loaded)
        return CUDA_SUCCESS;
    if (library == NULL)
        return CUDA_NOT_FOUND;
    is_loaded = devices_open(library);
    return is_loaded ? CUDA_SUCCESS : CUDA_NO_DEVICE;
}

static enum cuda_result start(void)
{
    enum cuda_result result = load();
    if (result != CUDA_SUCCESS)
        return result;
    if (access("/dev/nvidiactl", F_OK) == 0 && access("/dev/nvidia-uvm", F_OK) != 0)
        return CUDA_UNKNOWN;
    devices_list(&devices);
    if (devices.count == 0)
        return CUDA_NO_DEVICE;
    result = client_connect(&devices);
    if (result != CUDA_SUCCESS && result != CUDA_NOT_FOUND)
        return result;
    is_started = devices.count > 0;
    return is_started ? CUDA_SUCCESS : CUDA_NO_DEVICE;
}

EXPORT enum cuda_result cuInit(unsigned flags)
{
    if (flags != 0)
        return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    enum cuda_result result = is_started ? CUDA_SUCCESS : start();
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT enum cuda_result cuDriverGetVersion(int *version)
{
    if (version == NULL)
        return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    enum cuda_result result = load();
    pthread_mutex_unlock(&mutex);
    if (result == CUDA_SUCCESS)
        *version = devices_cuda_version();
    return result;
}

/* ---- devices --------------------------------------------------------------------------------------------------- */

#define REQUIRE_DEVICE(pointer, number)                            \
    do {                                                           \
        if (!is_started)                                           \
            return CUDA_NOT_INITIALIZED;                           \
        if ((pointer) == NULL)                                     \
            return CUDA_INVALID_VALUE;                             \
        if ((number) < 0 || (unsigned)(number) >= devices.count)   \
            return CUDA_INVALID_DEVICE;                            \
    } while (0)

EXPORT enum cuda_result cuDeviceGetCount(int *count)
{
    if (count == NULL)
        return CUDA_INVALID_VALUE;
    if (!is_started)
        return CUDA_NOT_INITIALIZED;
    *count = (int)devices.count;
    return CUDA_SUCCESS;
}

EXPORT enum cuda_result cuDeviceGet(int *device, int ordinal)
{
    REQUIRE_DEVICE(device, ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT enum cuda_result cuDeviceGetName(char *name, int length, int device)
{
    REQUIRE_DEVICE(name, device);
    snprintf(name, length > 0 ? (size_t)length : 0, "%s", devices.device[device].name);
    return CUDA_SUCCESS;
}

/* The 16 bytes of the UUID, without its prefix. */
EXPORT enum cuda_result cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    REQUIRE_DEVICE(uuid, device);
    const char *text = devices.device[device].uuid + strlen("GPU-");
    for (unsigned i = 0; i < 16; i++) {
        unsigned byte = 0;
        text += *text == '-';
        sscanf(text, "%2x", &byte);
        uuid[i] = (unsigned char)byte;
        text += 2;
    }
    return CUDA_SUCCESS;
}

EXPORT enum cuda_result cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    REQUIRE_DEVICE(bytes, device);
    *bytes = devices.device[device].memory_bytes;
    return CUDA_SUCCESS;
}

/* A client of MPS sees the multiprocessors that it may use, at least one. */
static int visible_multiprocessors(const struct cuda_device *device)
{
    double part = device->multiprocessors * client_percentage() / 100;
    int whole = (int)part;
    whole += whole < part;
    return whole > 0 ? whole : 1;
}

EXPORT enum cuda_result cuDeviceGetAttribute(int *value, int attribute, int device)
{
    REQUIRE_DEVICE(value, device);
    const struct cuda_device *one = &devices.device[device];
    switch (attribute) {
    case MULTIPROCESSOR_COUNT:
        *value = visible_multiprocessors(one);
        return CUDA_SUCCESS;
    case COMPUTE_MODE:
        *value = (int)one->compute_mode;
        return CUDA_SUCCESS;
    case CAPABILITY_MAJOR:
        *value = (int)one->capability_major;
        return CUDA_SUCCESS;
    case CAPABILITY_MINOR:
        *value = (int)one->capability_minor;
        return CUDA_SUCCESS;
    default:
        return CUDA_INVALID_VALUE;
    }
}
