// SPDX-License-Identifier: Apache-2.0

/* Finding libnvidia-ml.so.1. */
#include "library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libnvidia-ml.so.1"

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

void *library_open(void)
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
