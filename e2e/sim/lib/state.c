// SPDX-License-Identifier: Apache-2.0

/*
 * The state file: finding it, mapping it, reading it without locks and changing it with one (nvml-simulator.md §10).
 *
 * How a copy is read while others write is in snapshot.h; a writer fills the unpublished copy under flock.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"
#include "snapshot.h"

static struct {
    unsigned char *bytes; /* NULL: not mapped */
    bool writable;
    bool keeps_file;
    int file;
    dev_t device;
    ino_t inode;
    char path[PATH_MAX];
} map;

EXPORT const uint64_t nvdra_sim_abi = SIM_LAYOUT; /* the layout this library was built for; marks it as the simulator */

/* ---- finding the file --------------------------------------------------------------------------------- */

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* The firmware directory below any ancestor of the library: its driver root, or the root of a container. */
static bool find_beside_library(char path[PATH_MAX])
{
    Dl_info self;
    char library[PATH_MAX];
    if (dladdr(&nvdra_sim_abi, &self) == 0 || self.dli_fname == NULL || realpath(self.dli_fname, library) == NULL)
        return false;
    static const char prefix[] = "libnvidia-ml.so.";
    char *name = strrchr(library, '/') + 1;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    char version[64];
    snprintf(version, sizeof version, "%s", name + sizeof prefix - 1);
    for (char *end = name - 1; end != NULL; end = strrchr(library, '/')) {
        *end = '\0';
        int length = snprintf(path, PATH_MAX, "%s/lib/firmware/nvidia/%s/gsp_nvdra_sim.bin", library, version);
        if (length < PATH_MAX && exists(path))
            return true;
    }
    return false;
}

static bool find(char path[PATH_MAX])
{
    const char *given = getenv("NVDRA_SIM_STATE");
    if (given != NULL && given[0] != '\0')
        return realpath(given, path) != NULL;
    if (find_beside_library(path))
        return true;
    snprintf(path, PATH_MAX, "/var/lib/nvdra-sim/state.bin");
    return exists(path);
}

/* ---- mapping ------------------------------------------------------------------------------------------ */

static int open_node(const char *path, bool *writable)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    *writable = file >= 0;
    return file >= 0 ? file : open(path, O_RDONLY | O_CLOEXEC);
}

static bool is_mapped(const struct stat *info)
{
    return map.bytes != NULL && map.device == info->st_dev && map.inode == info->st_ino;
}

static nvml_code map_file(int file, const struct stat *info, bool writable)
{
    if (info->st_size != SIM_FILE_SIZE)
        return NVML_LIB_RM_VERSION_MISMATCH;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *bytes = mmap(NULL, SIM_FILE_SIZE, protection, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED)
        return NVML_OPERATING_SYSTEM;
    if (!snapshot_is_ours(bytes)) {
        munmap(bytes, SIM_FILE_SIZE);
        return NVML_LIB_RM_VERSION_MISMATCH;
    }
    map.bytes = bytes;
    map.writable = writable;
    map.file = file;
    map.device = info->st_dev;
    map.inode = info->st_ino;
    return NVML_SUCCESS;
}

nvml_code state_open(bool keep_mapping)
{
    char path[PATH_MAX];
    bool writable;
    if (!find(path))
        return NVML_DRIVER_NOT_LOADED;
    int file = open_node(path, &writable);
    if (file < 0)
        return NVML_DRIVER_NOT_LOADED;
    struct stat info;
    nvml_code code = NVML_OPERATING_SYSTEM;
    if (fstat(file, &info) == 0) {
        if (is_mapped(&info)) {
            code = NVML_SUCCESS;
        } else {
            if (!keep_mapping)
                state_close();
            map.keeps_file = false;
            code = map_file(file, &info, writable);
        }
    }
    if (code != NVML_SUCCESS || file != map.file)
        close(file);
    if (code == NVML_SUCCESS)
        memcpy(map.path, path, sizeof path);
    return code;
}

void state_close(void)
{
    if (map.bytes != NULL) {
        munmap(map.bytes, SIM_FILE_SIZE);
        if (!map.keeps_file)
            close(map.file);
    }
    map.bytes = NULL;
    map.keeps_file = false;
}

void state_keep_file(void)
{
    map.keeps_file = true;
}

bool state_is_open(void)
{
    return map.bytes != NULL;
}

int state_file(void)
{
    return map.file;
}

bool state_is_writable(void)
{
    return map.writable;
}

const struct sim_description *description(void)
{
    return (const void *)(map.bytes + SIM_AT_DESCRIPTION);
}

struct sim_call_counter *call_counters(void)
{
    return (void *)(map.bytes + SIM_AT_COUNTERS);
}

struct sim_rule_hits *rule_hits(void)
{
    return (void *)(map.bytes + SIM_AT_RULE_HITS);
}

const struct sim_node_state *configured_state(void)
{
    return (const void *)(map.bytes + SIM_AT_INITIAL);
}

unsigned char *state_bytes(void)
{
    return map.bytes;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static struct sim_header *header(void)
{
    return snapshot_header(map.bytes);
}

const char *device_root(void)
{
    return header()->dev_root;
}

static struct sim_node_state *state_copy(uint64_t generation)
{
    return snapshot_copy(map.bytes, generation);
}

#define READ_CONSISTENTLY(state, statement) SNAPSHOT_READ(map.bytes, state, statement)

struct sim_gpu_state read_gpu(unsigned gpu)
{
    struct sim_gpu_state copy;
    READ_CONSISTENTLY(state, copy = state->gpus[gpu]);
    return copy;
}

struct sim_gpu_instance read_gpu_instance(unsigned gpu, unsigned instance)
{
    struct sim_gpu_instance copy;
    READ_CONSISTENTLY(state, copy = state->tables[gpu].instances[instance]);
    return copy;
}

void read_gpu_instances(unsigned gpu, struct sim_gpu_instance instances[SIM_MAX_GPU_INSTANCES])
{
    READ_CONSISTENTLY(state, memcpy(instances, state->tables[gpu].instances, sizeof state->tables[gpu].instances));
}

void read_processes(unsigned gpu, struct sim_process processes[SIM_MAX_PROCESSES])
{
    READ_CONSISTENTLY(state, memcpy(processes, state->tables[gpu].processes, sizeof state->tables[gpu].processes));
}

bool module_is_loaded(void)
{
    bool loaded;
    READ_CONSISTENTLY(state, loaded = state->module_loaded);
    return loaded;
}

bool read_boot_id(struct boot_id *boot_id)
{
    bool follows_host;
    READ_CONSISTENTLY(state, {
        memcpy(boot_id->text, state->boot_id, sizeof boot_id->text);
        follows_host = state->follows_host_boot;
    });
    return follows_host;
}

unsigned read_rules(struct sim_rule rules[SIM_MAX_RULES])
{
    unsigned count;
    READ_CONSISTENTLY(state, {
        count = state->rule_count;
        if (count > 0)
            memcpy(rules, state->rules, sizeof state->rules);
    });
    return count;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

/* Every transaction locks a descriptor of its own: that excludes threads and forked children alike. */
static int lock_file(void)
{
    int file = open(map.path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return -1;
    struct stat info;
    bool same = fstat(file, &info) == 0 && is_mapped(&info);
    while (same && flock(file, LOCK_EX) != 0)
        same = errno == EINTR;
    if (same)
        return file;
    close(file);
    return -1;
}

nvml_code transaction_begin(struct transaction *transaction)
{
    if (!map.writable)
        return NVML_NO_PERMISSION;
    transaction->lock = lock_file();
    if (transaction->lock < 0)
        return NVML_OPERATING_SYSTEM;
    uint64_t generation = snapshot_generation(map.bytes);
    transaction->next = state_copy(generation + 1);
    memcpy(transaction->next, state_copy(generation), sizeof *transaction->next);
    return NVML_SUCCESS;
}

static void wake(void)
{
    __atomic_fetch_add(&header()->wake, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, &header()->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void transaction_commit(struct transaction *transaction)
{
    __atomic_fetch_add(&header()->generation, 1, __ATOMIC_ACQ_REL);
    wake();
    close(transaction->lock);
}

void transaction_cancel(struct transaction *transaction)
{
    close(transaction->lock);
}
