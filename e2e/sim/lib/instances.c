/*
 * Handles of MIG instances (nvml-simulator.md §7.10): a table that only grows, so that no slot ever stands for
 * something else than it did when it was handed out. A foreign pointer is refused without looking behind it.
 */
#include "sim.h"

enum { MAX_HANDLES = 4096 };

static struct instance handles[MAX_HANDLES];
static unsigned handle_count; /* grows under the session's lock, read without */

static bool is_same(const struct instance *one, const struct instance *other)
{
    return one->kind == other->kind && one->gpu == other->gpu && one->gpu_instance == other->gpu_instance &&
           one->compute_instance == other->compute_instance && one->incarnation == other->incarnation;
}

void *instance_handle(const struct instance *instance)
{
    struct instance *handle = NULL;
    session_lock();
    for (unsigned i = 0; i < handle_count && handle == NULL; i++)
        if (is_same(&handles[i], instance))
            handle = &handles[i];
    if (handle == NULL && handle_count < MAX_HANDLES) {
        handle = &handles[handle_count];
        *handle = *instance;
        __atomic_store_n(&handle_count, handle_count + 1, __ATOMIC_RELEASE);
    }
    session_unlock();
    return handle;
}

bool instance_of(const void *handle, enum instance_kind kind, struct instance *instance)
{
    uintptr_t distance = (uintptr_t)handle - (uintptr_t)handles;
    if (distance % sizeof handles[0] != 0 ||
        distance / sizeof handles[0] >= __atomic_load_n(&handle_count, __ATOMIC_ACQUIRE))
        return false;
    *instance = handles[distance / sizeof handles[0]];
    return instance->kind == kind;
}

bool instance_exists(const struct instance *instance, struct sim_gpu_instance *record)
{
    if (instance->gpu >= description()->gpu_count)
        return false;
    *record = read_gpu_instance(instance->gpu, instance->gpu_instance);
    if (!record->in_use || instance->kind == GPU_INSTANCE)
        return record->in_use && record->incarnation == instance->incarnation;
    const struct sim_compute_instance *compute = &record->compute[instance->compute_instance];
    return compute->in_use && compute->incarnation == instance->incarnation;
}
