// SPDX-License-Identifier: Apache-2.0

/* Binding libnvidia-ml.so.1. */
#include "nvml.h"

#include <dlfcn.h>
#include <stddef.h>

#include "library.h"

struct nvml nvml;
const struct private_table *nvml_private;

nvml_code nvml_load(void)
{
    void *library = library_open();
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
