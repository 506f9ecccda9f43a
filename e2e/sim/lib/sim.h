// SPDX-License-Identifier: Apache-2.0

/*
 * What the files of this library share: the mapped state, the course of one call, and views of one GPU.
 *
 * A call runs in the order of nvml-simulator.md §4: CALL() asks whether NVML is initialised, REQUIRE() checks
 * arguments, then version words, GPU() or DEVICE() checks the handle, applies fault rules and reports a lost device,
 * and what follows answers.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "functions.h" /* rendered from names.txt: enum function, FUNCTION_COUNT */
#include "layout.h"    /* generated from nvdra_sim/state_file/layout.py: the state file */
#include "nvml_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(name, target) extern __typeof__(target) name __attribute__((alias(#target), visibility("default")))

/* ---- the mapped state file (state.c) ------------------------------------------------------------------ */

/*
 * Finds and maps the file of this node; a second call keeps the mapping if it is still the same file. That of another
 * node goes, or with `keep_mapping` stays where it is for calls that still read it.
 */
nvml_code state_open(bool keep_mapping);
void state_close(void);
/* Keeps the descriptor of the mapped file, with its locks, until the process ends. */
void state_keep_file(void);
bool state_is_open(void);

/* A descriptor of the mapped file, for locks of this process. */
int state_file(void);
const struct sim_description *description(void);
/* The changing state that the node began with. */
const struct sim_node_state *configured_state(void);
bool state_is_writable(void);
/* The directory of the node's device nodes; empty: it has none. */
const char *device_root(void);
/* The mapped file, for what is not part of a copy. */
unsigned char *state_bytes(void);

/* Consistent copies of parts of the published state. */
struct sim_gpu_state read_gpu(unsigned gpu);
struct sim_gpu_instance read_gpu_instance(unsigned gpu, unsigned instance);
void read_gpu_instances(unsigned gpu, struct sim_gpu_instance instances[SIM_MAX_GPU_INSTANCES]);
void read_processes(unsigned gpu, struct sim_process processes[SIM_MAX_PROCESSES]);
unsigned read_rules(struct sim_rule rules[SIM_MAX_RULES]);
bool module_is_loaded(void);

struct sim_call_counter *call_counters(void);
struct sim_rule_hits *rule_hits(void);

/* One locked change: begin, write to `next`, commit. A killed writer leaves the published copy as it was. */
struct transaction {
    int lock;
    struct sim_node_state *next;
};
nvml_code transaction_begin(struct transaction *transaction);
void transaction_commit(struct transaction *transaction);
/* Ends it without a change. */
void transaction_cancel(struct transaction *transaction);

/* ---- events and waiting for any change (event_ring.c) ------------------------------------------------- */

uint64_t newest_event(void);
/* Events up to this one cannot be read: they are of an earlier boot, or overwritten. */
uint64_t oldest_event_before(void);
/* A copy of one event; false: it was overwritten meanwhile. */
bool read_event(uint64_t sequence, struct sim_event *event);
void count_dropped_events(uint64_t count);
/* Adds an event of a whole GPU. The transaction is about to be committed. */
void append_event(const struct transaction *transaction, unsigned gpu, uint64_t type);
/* Nobody reads the events so far. Called within a transaction. */
void discard_events(void);
/* Nanoseconds since 1970. */
uint64_t now_ns(void);

/* A number that every change and every event moves on, and a sleep that ends when it does, or by its time. */
uint32_t change_count(void);
void wait_for_change(uint32_t since, int64_t nanoseconds);

/* ---- boots (boots.c) ---------------------------------------------------------------------------------- */

struct boot_id {
    char text[36]; /* not terminated */
};

/* The boot that the state belongs to; false: the node boots by itself, not with this machine. */
bool read_boot_id(struct boot_id *boot_id);

/* What a boot does (nvml-simulator.md §10.6). Fault rules stay, they are the tester's. */
nvml_code boot(const struct boot_id *boot_id);
/* As nvidia-smi --gpu-reset: as configured, and a pending MIG mode is applied. NVML_IN_USE: somebody has it open. */
nvml_code reset_gpu(unsigned gpu);

/* ---- the session of this process (session.c) ---------------------------------------------------------- */

/* Announces a call, so that the mapping stays until it leaves; false: NVML is not initialised. */
bool session_enter(void);
void session_leave(void);
bool session_is_initialized(void);

/* What belongs to the session is changed under its one lock, which survives a fork. */
void session_lock(void);
void session_unlock(void);

/* Maps the file unless a session already uses one, and announces the init that goes on with it. */
nvml_code session_open(void);
/* Unmaps the file unless somebody uses it. */
void session_close(void);
/* Count the inits, with the lock held; true: that was the last one. */
void session_add_reference(void);
bool session_drop_reference(void);

/* ---- one call (call.c) -------------------------------------------------------------------------------- */

/* Who decides about the activation status of nvmlDeviceSetMigMode: the state of the GPU; a rule; or the state, but a rule
   has the caller see another one. */
enum activation { ACTIVATION_FOUND, ACTIVATION_GIVEN, ACTIVATION_REPORTED };

struct call {
    enum function function;
    bool entered;
    bool killed;        /* a rule ends the process once the work is done */
    nvml_code reported; /* what a rule has the caller see instead of the result of the work */
    enum activation activation;
    nvml_code activation_status; /* of a rule */
    nvml_code result;
};

nvml_code call_enter(struct call *call, enum function function);
void call_leave(struct call *call);
/* What the caller is told: `code`, unless a rule replaces it. */
nvml_code call_answer(struct call *call, nvml_code code);

/* Whether this process may see and change everything; a mutating call also needs a writable file. */
bool call_is_privileged(void);
/* A mutating call needs privilege and a writable file. */
nvml_code call_needs_privilege(void);

/* Starts a function: every return below it goes through RETURN. */
#define CALL(name)                                               \
    struct call call __attribute__((cleanup(call_leave))) = {0}; \
    REQUIRE_OK(call_enter(&call, F_##name))
#define RETURN(code) return call_answer(&call, (code))
#define REQUIRE(condition, code) \
    do {                         \
        if (!(condition))        \
            RETURN(code);        \
    } while (0)
#define REQUIRE_OK(expression)           \
    do {                                 \
        nvml_code code_ = (expression);  \
        if (code_ != NVML_SUCCESS)       \
            RETURN(code_);               \
    } while (0)
#define REQUIRE_POINTER(pointer) REQUIRE((pointer) != NULL, NVML_INVALID_ARGUMENT)
#define REQUIRE_VERSION(pointer, number) \
    REQUIRE((pointer)->version == NVML_VERSION_WORD(__typeof__(*(pointer)), number), NVML_VERSION_MISMATCH)
/* The driver, and the fault rules, of a call that concerns no particular GPU. */
#define NODE() REQUIRE_OK(ask_driver(&call, SIM_ANY_GPU))

/* ---- fault rules (rules.c) ---------------------------------------------------------------------------- */

/* Waits and fails as the rules for this function and GPU say; SIM_ANY_GPU: the call concerns none. */
nvml_code apply_rules(struct call *call, int gpu);
/* The same for what is no function of NVML. */
nvml_code apply_rules_of(struct call *call, const char *function, int gpu);
/* The same, and there is nobody to answer without the kernel module. */
nvml_code ask_driver(struct call *call, int gpu);

void sleep_ms(unsigned milliseconds);

/* ---- initialisation of GPUs (gpu_clients.c) ----------------------------------------------------------- */

/*
 * Waits until the GPU is initialised, and keeps it so until the session ends. GPU_IS_LOST: its driver is leaving it;
 * UNKNOWN: it takes no new clients, or does not start.
 */
nvml_code use_gpu(unsigned gpu);
/* This process stops using the GPU. */
void release_gpu(unsigned gpu);
/* Whether another process uses the GPU. */
bool has_other_clients(unsigned gpu);
/* Keep the kernel module in use while the session lasts. */
void open_driver(void);
void close_driver(void);
/* The session has ended, and its descriptors are closed or, unless `closed`, stay open until the process ends. */
void release_gpus(bool closed);

/* ---- locks on bytes behind the state file (locks.c) ---------------------------------------------------- */

/* Takes, waits for, or gives back the lock of a byte. The kernel gives back those of a process that ends. */
void set_lock(short type, unsigned byte);
/* Whether another process, or another session, has a lock of one of these bytes. */
bool is_locked(unsigned first, unsigned count);

/* ---- contexts, in which processes compute (contexts.c) ------------------------------------------------- */

/* Whether another process computes on the whole GPU or on one of its MIG devices. */
bool has_contexts(unsigned gpu);
/* The same of the MIG devices of one GPU instance, or of the one MIG device. */
bool has_contexts_in(unsigned gpu, unsigned gpu_instance);
bool has_contexts_on(unsigned gpu, unsigned gpu_instance, unsigned compute_instance);
/* Begin and end to compute. IN_USE: the compute mode forbids it; NOT_SUPPORTED: the GPU is in MIG mode. */
nvml_code open_context(nvml_device device);
nvml_code close_context(nvml_device device);

/* ---- handles of MIG instances (instances.c) ----------------------------------------------------------- */

enum instance_kind { GPU_INSTANCE = 1, COMPUTE_INSTANCE, MIG_DEVICE };

/* An instance that exists or did; a MIG device is a compute instance seen as a device. */
struct instance {
    enum instance_kind kind;
    unsigned gpu, gpu_instance, compute_instance;
    uint64_t incarnation; /* of the GPU instance, or of the compute instance */
};

/* The handle of an instance, the same for as long as it lives. */
void *instance_handle(const struct instance *instance);
/* What a handle of this kind stands for; false: it is no such handle. Says nothing about what exists now. */
bool instance_of(const void *handle, enum instance_kind kind, struct instance *instance);
/* Whether it is what this record of its GPU instance describes, or a part of that. */
bool instance_is_in(const struct instance *instance, const struct sim_gpu_instance *record);
/* Copies the record of the GPU instance; false: the instance is gone. */
bool instance_exists(const struct instance *instance, struct sim_gpu_instance *record);

/* ---- GPUs and their handles (handles.c) --------------------------------------------------------------- */

struct gpu {
    unsigned number; /* place in the description, bus order; not NVML's index, which counts visible GPUs */
    const struct sim_gpu_spec *spec;
    struct sim_gpu_state now;
    bool is_mig; /* the handle was that of a MIG device of this GPU, and `instance` says which */
    struct instance instance;
};

nvml_device handle_of(unsigned gpu);
nvml_code gpu_of(nvml_device device, struct call *call, struct gpu *gpu);
/* Fills in a GPU by its number: driver, rules and loss as for a handle. */
nvml_code open_gpu(unsigned number, struct call *call, struct gpu *gpu);
/* Opens the node of the GPU, in this container or below the node's own /dev, so that others see it; -1: there is none. */
int open_device_node(unsigned gpu);
/* Whether rows of its memory that fail are replaced by spare ones: from Ampere on. */
bool remaps_rows(const struct gpu *gpu);
bool gpu_is_visible(unsigned gpu);
unsigned count_visible_gpus(void);
/* Finds the GPUs of a session that begins; how many there are. */
unsigned list_gpus(void);
/* In a container only what has its device node there exists. */
bool sees_only_device_nodes(void);
bool is_device_node(const char *path, unsigned major_number, unsigned minor_number);

/* Declares `gpu`, the GPU behind the handle of a GPU or of a MIG device, checked and alive. */
#define DEVICE(device) \
    struct gpu gpu;    \
    REQUIRE_OK(gpu_of(device, &call, &gpu))
/* The same for what only a physical GPU can answer. */
#define GPU(device) \
    DEVICE(device); \
    REQUIRE(!gpu.is_mig, NVML_NOT_SUPPORTED)

/* ---- MIG devices (mig_devices.c) ---------------------------------------------------------------------- */

/* A MIG device with this text or binary UUID, or in the old form MIG-GPU-<uuid>/<gi>/<ci>. */
bool find_mig_device(const char *uuid, struct instance *found);
bool find_mig_device_by_bytes(const uint8_t uuid[16], struct instance *found);
nvml_code mig_name(const struct gpu *gpu, char *name, unsigned length);
nvml_code mig_uuid(const struct gpu *gpu, char *uuid, unsigned length);
nvml_code mig_index(const struct gpu *gpu, unsigned *index);
/* Memory of the GPU instance, and what its processes use of it, in MiB. */
nvml_code mig_memory(const struct gpu *gpu, uint64_t *total_mib, uint64_t *used_mib);

/* ---- what other programs see of MIG (capability_files.c, uuid5.c) ------------------------------------- */

/* Makes the capability files of a GPU below the simulated /proc those of the state that is about to be published. */
nvml_code write_capability_files(const struct sim_node_state *next, unsigned gpu);
/* The version 5 UUID of a name (RFC 9562). */
void uuid5(const uint8_t namespace_uuid[16], const char *name, uint8_t uuid[16]);

/* ---- event sets (events.c) ---------------------------------------------------------------------------- */

/*
 * All sets end with the session. Called with its lock held. False: a set was not freed, or while a thread waited in it,
 * so that its descriptors stay open.
 */
bool event_sets_end(void);
/* The same of the sets of the whole node, in which a wait that is under way finds out by itself. */
void system_event_sets_end(void);

/* ---- small things ------------------------------------------------------------------------------------- */

static inline nvml_code answer_text(char *buffer, unsigned length, const char *text)
{
    size_t size = strlen(text) + 1;
    if (length < size)
        return NVML_INSUFFICIENT_SIZE;
    memcpy(buffer, text, size);
    return NVML_SUCCESS;
}

/* A column of the description that may be absent on this board. */
static inline nvml_code answer_number(uint32_t *out, uint32_t column)
{
    if (column == SIM_NOT_AVAILABLE)
        return NVML_NOT_SUPPORTED;
    *out = column;
    return NVML_SUCCESS;
}

static inline void format_uuid(const uint8_t bytes[16], char text[37])
{
    for (unsigned i = 0; i < 16; i++)
        text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
}
