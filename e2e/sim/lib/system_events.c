// SPDX-License-Identifier: Apache-2.0

/*
 * Event sets of the whole node: which GPUs drivers take and leave. They read the same ring as those of GPUs, whose types
 * no set of this kind can ask for (layout.py, SYSTEM_EVENT_*).
 */
#include <time.h>

#include "sim.h"

enum { MAX_SETS = 16, SLICE_NS = 100000000, SHIFT = 32 };
enum { ALL_TYPES = NVML_SYSTEM_EVENT_UNBIND | NVML_SYSTEM_EVENT_BIND };
_Static_assert(SIM_SYSTEM_EVENT_UNBIND == (uint64_t)NVML_SYSTEM_EVENT_UNBIND << SHIFT, "unbind");
_Static_assert(SIM_SYSTEM_EVENT_BIND == (uint64_t)NVML_SYSTEM_EVENT_BIND << SHIFT, "bind");

struct nvml_system_event_set {
    bool in_use;
    uint64_t types; /* of NVML */
    uint64_t read;  /* events up to this one have been looked at */
};
static struct nvml_system_event_set sets[MAX_SETS];

static bool is_set(nvml_system_event_set set)
{
    uintptr_t distance = (uintptr_t)set - (uintptr_t)sets;
    return distance < sizeof sets && distance % sizeof sets[0] == 0 && set->in_use;
}

void system_event_sets_end(void)
{
    memset(sets, 0, sizeof sets);
}

EXPORT nvml_code nvmlSystemEventSetCreate(nvml_system_event_set_request *request)
{
    CALL(nvmlSystemEventSetCreate);
    REQUIRE_POINTER(request);
    REQUIRE_VERSION(request, 1);
    NODE();
    nvml_code code = NVML_MEMORY;
    session_lock();
    for (unsigned i = 0; i < MAX_SETS && code != NVML_SUCCESS; i++) {
        if (sets[i].in_use)
            continue;
        sets[i] = (struct nvml_system_event_set){.in_use = true};
        request->set = &sets[i];
        code = NVML_SUCCESS;
    }
    session_unlock();
    RETURN(code);
}

EXPORT nvml_code nvmlSystemEventSetFree(nvml_system_event_set_request *request)
{
    CALL(nvmlSystemEventSetFree);
    REQUIRE_POINTER(request);
    REQUIRE_VERSION(request, 1);
    NODE();
    session_lock();
    bool valid = is_set(request->set);
    if (valid)
        request->set->in_use = false;
    session_unlock();
    RETURN(valid ? NVML_SUCCESS : NVML_INVALID_ARGUMENT);
}

EXPORT nvml_code nvmlSystemRegisterEvents(nvml_system_event_registration *request)
{
    CALL(nvmlSystemRegisterEvents);
    REQUIRE_POINTER(request);
    REQUIRE_VERSION(request, 1);
    NODE();
    REQUIRE(request->types != 0 && (request->types & ~(unsigned long long)ALL_TYPES) == 0, NVML_INVALID_ARGUMENT);
    session_lock();
    bool valid = is_set(request->set);
    if (valid) {
        if (request->set->types == 0)
            request->set->read = newest_event();
        request->set->types |= request->types;
    }
    session_unlock();
    RETURN(valid ? NVML_SUCCESS : NVML_INVALID_ARGUMENT);
}

/* ---- waiting --------------------------------------------------------------------------------------------------- */

/* Takes the oldest events that the set asked for, as many as there is room for. */
static nvml_code take_events(nvml_system_event_wait *request)
{
    nvml_system_event_set set = request->set;
    struct sim_event event;
    if (!is_set(set))
        return NVML_INVALID_ARGUMENT;
    if (!module_is_loaded())
        return NVML_DRIVER_NOT_LOADED;
    uint64_t before = oldest_event_before();
    set->read = set->read < before ? before : set->read;
    while (set->read < newest_event() && request->event_count < request->data_size) {
        if (!read_event(++set->read, &event) || (event.type >> SHIFT & set->types) == 0)
            continue;
        const struct sim_gpu_spec *spec = &description()->gpus[event.gpu];
        request->data[request->event_count++] = (nvml_system_event){
            event.type >> SHIFT, spec->pci_domain << 16 | spec->pci_bus << 8 | spec->pci_device};
    }
    return request->event_count > 0 ? NVML_SUCCESS : NVML_TIMEOUT;
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static nvml_code wait_for_events(nvml_system_event_wait *request)
{
    int64_t end = monotonic_ns() + request->timeout_ms * INT64_C(1000000);
    request->event_count = 0;
    for (;;) {
        uint32_t changes = change_count();
        session_lock();
        nvml_code code = session_is_initialized() ? take_events(request) : NVML_UNINITIALIZED;
        session_unlock();
        int64_t left = end - monotonic_ns();
        if (code != NVML_TIMEOUT || left <= 0)
            return code;
        wait_for_change(changes, left < SLICE_NS ? left : SLICE_NS);
    }
}

EXPORT nvml_code nvmlSystemEventSetWait(nvml_system_event_wait *request)
{
    CALL(nvmlSystemEventSetWait);
    REQUIRE_POINTER(request);
    REQUIRE_VERSION(request, 1);
    REQUIRE(request->data != NULL && request->data_size > 0, NVML_INVALID_ARGUMENT);
    NODE();
    RETURN(wait_for_events(request));
}
