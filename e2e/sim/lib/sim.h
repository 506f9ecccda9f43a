/*
 * What the files of this library share: the mapped state, the course of one call, and views of one GPU.
 *
 * A call runs in the order of spec §4: CALL() asks whether NVML is initialised, REQUIRE() checks arguments, then
 * version words, GPU() checks the handle, applies fault rules and reports a lost device, and what follows answers.
 */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "functions.h" /* rendered from names.txt: enum function, FUNCTION_COUNT */
#include "layout.h"    /* rendered from nvdra_sim/layout.py: the state file */
#include "nvml_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(name, target) extern __typeof__(target) name __attribute__((alias(#target), visibility("default")))

/* ---- the mapped state file (state.c) ------------------------------------------------------------------ */

/* Finds and maps the file of this node; a second call keeps the mapping if it is still the same file. */
nvml_code state_open(void);
void state_close(void);
bool state_is_open(void);

const struct sim_description *description(void);
bool state_is_writable(void);

/* Consistent copies of parts of the published state. */
struct sim_gpu_state read_gpu(unsigned gpu);
unsigned read_rules(struct sim_rule rules[SIM_MAX_RULES]);

struct sim_call_counter *call_counters(void);
struct sim_rule_hits *rule_hits(void);

/* One locked change: begin, write to `next`, commit. A killed writer leaves the published copy as it was. */
struct transaction {
    int lock;
    struct sim_node_state *next;
};
nvml_code transaction_begin(struct transaction *transaction);
void transaction_commit(struct transaction *transaction);

struct boot_id {
    char text[36]; /* not terminated */
};

/* The boot that the state belongs to; false: the node boots by itself, not with this machine. */
bool read_boot_id(struct boot_id *boot_id);

/* After a boot: every GPU as the configuration has it. Fault rules stay, they are the tester's. */
nvml_code restore_initial_state(const struct boot_id *boot_id);

/* ---- initialisation (init.c) -------------------------------------------------------------------------- */

/* Announces a call, so that the mapping stays until it leaves; false: NVML is not initialised. */
bool session_enter(void);
void session_leave(void);
bool session_is_initialized(void);

/* What belongs to the session of this process is changed under its one lock, which survives a fork. */
void session_lock(void);
void session_unlock(void);

/* ---- one call (call.c) -------------------------------------------------------------------------------- */

struct call {
    enum function function;
    bool entered;
    nvml_code result;
};

nvml_code call_enter(struct call *call, enum function function);
void call_leave(struct call *call);

/* A mutating call needs privilege and a writable file. */
nvml_code call_needs_privilege(void);

/* Starts a function: every return below it goes through RETURN. */
#define CALL(name)                                               \
    struct call call __attribute__((cleanup(call_leave))) = {0}; \
    REQUIRE_OK(call_enter(&call, F_##name))
#define RETURN(code) return call.result = (code)
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
/* Fault rules of a call that concerns no particular GPU. */
#define NODE() REQUIRE_OK(apply_rules(call.function, SIM_ANY_GPU))

/* ---- fault rules (rules.c) ---------------------------------------------------------------------------- */

/* Waits and fails as the rules for this function and GPU say; SIM_ANY_GPU: the call concerns none. */
nvml_code apply_rules(enum function function, int gpu);

/* ---- GPUs and their handles (handles.c) --------------------------------------------------------------- */

struct gpu {
    unsigned number; /* place in the description, bus order; not NVML's index, which counts visible GPUs */
    const struct sim_gpu_spec *spec;
    struct sim_gpu_state now;
};

nvml_device handle_of(unsigned gpu);
nvml_code gpu_of(nvml_device device, enum function function, struct gpu *gpu);
bool gpu_is_visible(unsigned gpu);
unsigned count_visible_gpus(void);

/* Declares `gpu`, the physical GPU behind a handle, checked and alive. */
#define GPU(device) \
    struct gpu gpu; \
    REQUIRE_OK(gpu_of(device, call.function, &gpu))

/* ---- event sets (events.c) ---------------------------------------------------------------------------- */

/* Called with the session's lock held. */
void event_sets_free(void);

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
