/*
 * The few functions of libcuda.so.1 that programs call to ask "is there a GPU?": the answers are NVML's, so a
 * container sees the GPUs whose device nodes it was given. There is no computing here.
 *
 * As the real one, it needs /dev/nvidia-uvm, and fails without saying so. Where there are no device nodes at all, the
 * node is one of files only, and its programs are not containers.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { CUDA_SUCCESS = 0, CUDA_INVALID_VALUE = 1, CUDA_NOT_INITIALIZED = 3, CUDA_NO_DEVICE = 100, CUDA_NOT_FOUND = 500, CUDA_UNKNOWN = 999 };
enum { NVML_INIT_NO_GPUS = 1 };

typedef int init_function(unsigned);
typedef int count_function(unsigned *);
typedef int version_function(int *);

static void *nvml;
static unsigned devices;

static int load(void)
{
    if (nvml != NULL)
        return CUDA_SUCCESS;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL)
        return CUDA_NOT_FOUND;
    init_function *init = (init_function *)dlsym(library, "nvmlInitWithFlags");
    if (init == NULL || init(NVML_INIT_NO_GPUS) != 0)
        return CUDA_NO_DEVICE;
    nvml = library;
    return CUDA_SUCCESS;
}

EXPORT int cuInit(unsigned flags)
{
    if (flags != 0)
        return CUDA_INVALID_VALUE;
    int result = load();
    if (result != CUDA_SUCCESS)
        return result;
    if (access("/dev/nvidiactl", F_OK) == 0 && access("/dev/nvidia-uvm", F_OK) != 0)
        return CUDA_UNKNOWN;
    count_function *count = (count_function *)dlsym(nvml, "nvmlDeviceGetCount_v2");
    return count != NULL && count(&devices) == 0 && devices > 0 ? CUDA_SUCCESS : CUDA_NO_DEVICE;
}

EXPORT int cuDeviceGetCount(int *count)
{
    if (count == NULL)
        return CUDA_INVALID_VALUE;
    if (nvml == NULL)
        return CUDA_NOT_INITIALIZED;
    *count = (int)devices;
    return CUDA_SUCCESS;
}

EXPORT int cuDriverGetVersion(int *version)
{
    if (version == NULL)
        return CUDA_INVALID_VALUE;
    int result = load();
    if (result != CUDA_SUCCESS)
        return result;
    version_function *ask = (version_function *)dlsym(nvml, "nvmlSystemGetCudaDriverVersion_v2");
    return ask != NULL && ask(version) == 0 ? CUDA_SUCCESS : CUDA_NOT_FOUND;
}
