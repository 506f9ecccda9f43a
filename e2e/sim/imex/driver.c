// SPDX-License-Identifier: Apache-2.0

/* The simulated driver that a program belongs to: the state file of its node. */
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "imex.h"
#include "snapshot.h"

#define PROGRAM "/proc/self/exe"

/* The firmware folder of the driver root that this program is installed in; of a container, whose root is `/`. */
static bool find_beside_program(char path[PATH_MAX])
{
    char program[PATH_MAX], pattern[PATH_MAX + 64];
    ssize_t length = readlink(PROGRAM, program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    for (char *end = strrchr(program, '/'); end != NULL; end = strrchr(program, '/')) {
        glob_t found;
        *end = '\0';
        snprintf(pattern, sizeof pattern, "%s/lib/firmware/nvidia/*/gsp_nvdra_sim.bin", program);
        bool there = glob(pattern, 0, NULL, &found) == 0;
        if (there)
            snprintf(path, PATH_MAX, "%s", found.gl_pathv[0]);
        globfree(&found);
        if (there)
            return true;
    }
    return false;
}

static void find(char path[PATH_MAX])
{
    const char *given = getenv("NVDRA_SIM_STATE");
    if (given != NULL && given[0] != '\0')
        snprintf(path, PATH_MAX, "%s", given);
    else if (!find_beside_program(path))
        snprintf(path, PATH_MAX, "/var/lib/nvdra-sim/state.bin");
}

void *driver_state(void)
{
    char path[PATH_MAX];
    struct stat info;
    void *bytes = NULL;
    find(path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    if (fstat(file, &info) == 0 && info.st_size == SIM_FILE_SIZE)
        bytes = mmap(NULL, SIM_FILE_SIZE, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return bytes != NULL && bytes != MAP_FAILED && snapshot_is_ours(bytes) ? bytes : NULL;
}

const struct sim_description *driver_description(const void *state)
{
    return (const void *)((const unsigned char *)state + SIM_AT_DESCRIPTION);
}
