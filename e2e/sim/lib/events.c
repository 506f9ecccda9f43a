// SPDX-License-Identifier: Apache-2.0

/*
 * Event sets (nvml-simulator.md §8): made, filled, waited for and freed. What happens on the node is in the ring of the
 * state file; a set remembers how far it has read, so that every event goes to one waiter of each set that asked for
 * it.
 */
#include <time.h>

#include "sim.h"

enum { MAX_SETS = 64, SLICE_NS = 100000000 };
enum { NAMELESS_TYPES = 0x60 }; /* bits that no type of NVML has: the driver takes them, and nothing comes */

struct nvml_event_set {
    bool in_use;
    unsigned waiters;
    uint64_t read;                /* events up to this one have been looked at */
    uint64_t types[SIM_MAX_GPUS]; /* 0: not registered */
    uint64_t since[SIM_MAX_GPUS]; /* the newest event when the GPU was registered */
    bool loss_told[SIM_MAX_GPUS];
};
static struct nvml_event_set sets[MAX_SETS];

static bool is_set(nvml_event_set set)
{
    uintptr_t distance = (uintptr_t)set - (uintptr_t)sets;
    return distance < sizeof sets && distance % sizeof sets[0] == 0 && set->in_use;
}

static bool kept_open; /* a set was freed while a thread waited in it */

bool event_sets_end(void)
{
    bool all_freed = !kept_open;
    for (unsigned i = 0; i < MAX_SETS; i++) {
        all_freed = all_freed && !sets[i].in_use && sets[i].waiters == 0;
        sets[i] = (struct nvml_event_set){.waiters = sets[i].waiters};
    }
    kept_open = false;
    return all_freed;
}

EXPORT nvml_code nvmlEventSetCreate(nvml_event_set *set)
{
    CALL(nvmlEventSetCreate);
    REQUIRE_POINTER(set);
    NODE();
    nvml_code code = NVML_MEMORY;
    session_lock();
    for (unsigned i = 0; i < MAX_SETS && code != NVML_SUCCESS; i++) {
        if (sets[i].in_use || sets[i].waiters > 0)
            continue;
        sets[i] = (struct nvml_event_set){.in_use = true, .read = newest_event()};
        *set = &sets[i];
        code = NVML_SUCCESS;
    }
    session_unlock();
    RETURN(code);
}

EXPORT nvml_code nvmlEventSetFree(nvml_event_set set)
{
    CALL(nvmlEventSetFree);
    REQUIRE_OK(apply_rules(&call, SIM_ANY_GPU));
    session_lock();
    bool valid = is_set(set);
    if (valid) {
        set->in_use = false;
        kept_open = kept_open || set->waiters > 0;
    }
    session_unlock();
    RETURN(valid ? NVML_SUCCESS : NVML_INVALID_ARGUMENT);
}

EXPORT nvml_code nvmlDeviceGetSupportedEventTypes(nvml_device device, unsigned long long *types)
{
    CALL(nvmlDeviceGetSupportedEventTypes);
    REQUIRE_POINTER(types);
    GPU(device);
    *types = gpu.spec->supported_events;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceRegisterEvents(nvml_device device, unsigned long long types, nvml_event_set set)
{
    CALL(nvmlDeviceRegisterEvents);
    DEVICE(device);
    REQUIRE(!gpu.is_mig, NVML_INVALID_ARGUMENT);
    REQUIRE((types & ~(gpu.spec->supported_events | NAMELESS_TYPES)) == 0, NVML_NOT_SUPPORTED);
    session_lock();
    bool valid = is_set(set);
    if (valid && set->types[gpu.number] == 0)
        set->since[gpu.number] = newest_event();
    if (valid)
        set->types[gpu.number] |= types;
    session_unlock();
    RETURN(valid ? NVML_SUCCESS : NVML_INVALID_ARGUMENT);
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

/* Errors of a single MIG instance are for the privileged only. */
static bool is_wanted(nvml_event_set set, const struct sim_event *event)
{
    return set->types[event->gpu] & event->type && event->sequence > set->since[event->gpu] &&
           (event->gpu_instance == SIM_NO_INSTANCE || call_is_privileged());
}

/* Takes the oldest event that the set asked for. What was overwritten before it was read is counted. */
static bool take_event(nvml_event_set set, struct sim_event *event)
{
    uint64_t before = oldest_event_before(), newest = newest_event();
    if (set->read < before) {
        if (before + SIM_MAX_EVENTS == newest)
            count_dropped_events(before - set->read);
        set->read = before;
    }
    while (set->read < newest)
        if (read_event(++set->read, event) && is_wanted(set, event))
            return true;
    return false;
}

static bool tells_loss(nvml_event_set set, unsigned gpu)
{
    bool told = set->loss_told[gpu];
    set->loss_told[gpu] = set->types[gpu] != 0 && read_gpu(gpu).lost;
    if (description()->gpu_lost_wait == SIM_LOST_WAIT_XID_ONLY)
        return false;
    return set->loss_told[gpu] && !(told && description()->gpu_lost_wait == SIM_LOST_WAIT_ERROR_ONCE);
}

/* Called with the session's lock held. Events come first: the last one of a GPU says why it was lost. */
static nvml_code look_at(nvml_event_set set, struct sim_event *event)
{
    if (!is_set(set))
        return NVML_INVALID_ARGUMENT;
    if (!module_is_loaded())
        return NVML_DRIVER_NOT_LOADED;
    if (take_event(set, event))
        return NVML_SUCCESS;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        if (tells_loss(set, gpu))
            return NVML_GPU_IS_LOST;
    return NVML_TIMEOUT;
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static nvml_code wait_until_event(nvml_event_set set, unsigned timeout_ms, struct sim_event *event)
{
    int64_t end = monotonic_ns() + timeout_ms * INT64_C(1000000);
    for (;;) {
        uint32_t changes = change_count();
        session_lock();
        nvml_code code = session_is_initialized() ? look_at(set, event) : NVML_UNINITIALIZED;
        session_unlock();
        int64_t left = end - monotonic_ns();
        if (code != NVML_TIMEOUT || left <= 0)
            return code;
        /* Not longer at once: whoever changed something may have been killed before it told. */
        wait_for_change(changes, left < SLICE_NS ? left : SLICE_NS);
    }
}

static nvml_code wait_for_event(nvml_event_set set, unsigned timeout_ms, struct sim_event *event)
{
    session_lock();
    bool valid = is_set(set);
    if (valid)
        set->waiters++;
    session_unlock();
    if (!valid)
        return NVML_INVALID_ARGUMENT;
    nvml_code code = wait_until_event(set, timeout_ms, event);
    session_lock();
    set->waiters--;
    session_unlock();
    return code;
}

EXPORT nvml_code nvmlEventSetWait_v2(nvml_event_set set, nvml_event *event, unsigned timeout_ms)
{
    struct sim_event found;
    CALL(nvmlEventSetWait_v2);
    REQUIRE_POINTER(event);
    NODE();
    REQUIRE_OK(wait_for_event(set, timeout_ms, &found));
    *event = (nvml_event){
        {handle_of(found.gpu), found.type, found.data}, found.gpu_instance, found.compute_instance};
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlEventSetWait(nvml_event_set set, nvml_event_v1 *event, unsigned timeout_ms)
{
    struct sim_event found;
    CALL(nvmlEventSetWait);
    REQUIRE_POINTER(event);
    NODE();
    REQUIRE_OK(wait_for_event(set, timeout_ms, &found));
    *event = (nvml_event_v1){handle_of(found.gpu), found.type, found.data};
    RETURN(NVML_SUCCESS);
}
ALIAS(nvmlEventSetWait_v1, nvmlEventSetWait);
