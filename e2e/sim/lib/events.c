/*
 * Event sets: they can be made, filled, waited for and freed. No event ever happens on this node yet; a wait ends
 * with its time, or at once when a GPU of the set is lost.
 */
#include <stdlib.h>
#include <time.h>

#include "sim.h"

enum { MAX_SETS = 64, POLL_NS = 10000000 };

struct nvml_event_set {
    bool in_use;
    bool has_gpu[SIM_MAX_GPUS];
};
static struct nvml_event_set sets[MAX_SETS];

static bool is_set(nvml_event_set set)
{
    uintptr_t distance = (uintptr_t)set - (uintptr_t)sets;
    return distance < sizeof sets && distance % sizeof sets[0] == 0 && set->in_use;
}

void event_sets_free(void)
{
    memset(sets, 0, sizeof sets);
}

EXPORT nvml_code nvmlEventSetCreate(nvml_event_set *set)
{
    CALL(nvmlEventSetCreate);
    REQUIRE_POINTER(set);
    NODE();
    nvml_code code = NVML_MEMORY;
    session_lock();
    for (unsigned i = 0; i < MAX_SETS && code != NVML_SUCCESS; i++) {
        if (sets[i].in_use)
            continue;
        sets[i] = (struct nvml_event_set){.in_use = true};
        *set = &sets[i];
        code = NVML_SUCCESS;
    }
    session_unlock();
    RETURN(code);
}

EXPORT nvml_code nvmlEventSetFree(nvml_event_set set)
{
    CALL(nvmlEventSetFree);
    NODE();
    session_lock();
    bool valid = is_set(set);
    if (valid)
        set->in_use = false;
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
    GPU(device);
    REQUIRE((types & ~gpu.spec->supported_events) == 0, NVML_NOT_SUPPORTED);
    session_lock();
    bool valid = is_set(set);
    if (valid && types != 0)
        set->has_gpu[gpu.number] = true;
    session_unlock();
    RETURN(valid ? NVML_SUCCESS : NVML_INVALID_ARGUMENT);
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

static nvml_code look_at(nvml_event_set set)
{
    struct nvml_event_set copy = {0};
    if (!session_is_initialized())
        return NVML_UNINITIALIZED;
    session_lock();
    if (is_set(set))
        copy = *set;
    session_unlock();
    if (!copy.in_use)
        return NVML_INVALID_ARGUMENT;
    for (unsigned gpu = 0; gpu < description()->gpu_count; gpu++)
        if (copy.has_gpu[gpu] && read_gpu(gpu).lost)
            return NVML_GPU_IS_LOST;
    return NVML_TIMEOUT;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static nvml_code wait_for_event(nvml_event_set set, unsigned timeout_ms)
{
    int64_t end = now_ns() + timeout_ms * INT64_C(1000000);
    for (;;) {
        nvml_code code = look_at(set);
        int64_t left = end - now_ns();
        if (code != NVML_TIMEOUT || left <= 0)
            return code;
        struct timespec pause = {0, left < POLL_NS ? left : POLL_NS};
        nanosleep(&pause, NULL);
    }
}

EXPORT nvml_code nvmlEventSetWait_v2(nvml_event_set set, nvml_event *event, unsigned timeout_ms)
{
    CALL(nvmlEventSetWait_v2);
    REQUIRE_POINTER(event);
    NODE();
    RETURN(wait_for_event(set, timeout_ms));
}

EXPORT nvml_code nvmlEventSetWait(nvml_event_set set, nvml_event_v1 *event, unsigned timeout_ms)
{
    CALL(nvmlEventSetWait);
    REQUIRE_POINTER(event);
    NODE();
    RETURN(wait_for_event(set, timeout_ms));
}
ALIAS(nvmlEventSetWait_v1, nvmlEventSetWait);
