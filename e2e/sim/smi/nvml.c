/* Finding and binding libnvidia-ml.so.1. */
#include "nvml.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libnvidia-ml.so.1"

struct nvml nvml;
const struct private_table *nvml_private;

static const char *const LIBRARY_DIRECTORIES[] = {
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
};

/* The root of the driver that this program is installed in: its path without /usr/bin or /bin. */
static void own_root(char root[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", root, PATH_MAX - 1);
    root[length > 0 ? length : 0] = '\0';
    static const char *const BINARIES[] = {"/usr/bin/", "/bin/"};
    for (size_t i = 0; i < sizeof BINARIES / sizeof *BINARIES; i++) {
        char *end = strrchr(root, '/');
        size_t tail = strlen(BINARIES[i]);
        if (end == NULL || (size_t)(end + 1 - root) < tail)
            continue;
        if (memcmp(end + 1 - tail, BINARIES[i], tail) == 0) {
            end[1 - (ssize_t)tail] = '\0';
            return;
        }
    }
    root[0] = '\0';
}

static void *open_library(void)
{
    char root[PATH_MAX], path[PATH_MAX + 64];
    own_root(root);
    for (size_t i = 0; i < sizeof LIBRARY_DIRECTORIES / sizeof *LIBRARY_DIRECTORIES; i++) {
        snprintf(path, sizeof path, "%s/%s/" LIBRARY, root, LIBRARY_DIRECTORIES[i]);
        void *library = dlopen(path, RTLD_NOW);
        if (library != NULL)
            return library;
    }
    return dlopen(LIBRARY, RTLD_NOW);
}

nvml_code nvml_load(void)
{
    void *library = open_library();
    if (library == NULL)
        return (nvml_code)NVML_LIBRARY_NOT_FOUND;
    nvml.ErrorString = (const char *(*)(nvml_code))dlsym(library, "nvmlErrorString");
    if (nvml.ErrorString == NULL)
        return NVML_FUNCTION_NOT_FOUND;
#define BIND(name, suffix, arguments)                                                   \
    nvml.name = (nvml_code(*) arguments)dlsym(library, "nvml" #name suffix);            \
    if (nvml.name == NULL)                                                              \
        return NVML_FUNCTION_NOT_FOUND;
    NVML_FUNCTIONS(BIND)
#undef BIND
    return NVML_SUCCESS;
}

nvml_code nvml_bind_private(void)
{
    static const uint8_t id[16] = PRIVATE_TABLE_ID;
    const void *table = NULL;
    nvml_code code = nvml.InternalGetExportTable(&table, id);
    nvml_private = table;
    return code;
}
