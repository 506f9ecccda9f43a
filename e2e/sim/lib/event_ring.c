// SPDX-License-Identifier: Apache-2.0

/*
 * The event ring of the state file (nvml-simulator.md §8, §10): reading it without locks, adding to it under the lock of
 * a transaction, and waiting until anything changes. Event sets, which choose from it, are in events.c.
 */
#include <time.h>

#include "sim.h"
#include "snapshot.h"

static struct sim_header *ring_header(void)
{
    return snapshot_header(state_bytes());
}

static struct sim_event *record_of(uint64_t sequence)
{
    struct sim_event *ring = (void *)(state_bytes() + SIM_AT_EVENTS);
    return &ring[sequence % SIM_MAX_EVENTS];
}

uint64_t newest_event(void)
{
    return __atomic_load_n(&ring_header()->event_head, __ATOMIC_ACQUIRE);
}

uint64_t oldest_event_before(void)
{
    uint64_t newest = newest_event(), floor = __atomic_load_n(&ring_header()->event_floor, __ATOMIC_ACQUIRE);
    uint64_t overwritten = newest > SIM_MAX_EVENTS ? newest - SIM_MAX_EVENTS : 0;
    return floor > overwritten ? floor : overwritten;
}

bool read_event(uint64_t sequence, struct sim_event *event)
{
    const struct sim_event *record = record_of(sequence);
    *event = *record;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    /* A writer takes the number away before it changes anything else. */
    return event->sequence == sequence && __atomic_load_n(&record->sequence, __ATOMIC_ACQUIRE) == sequence;
}

void count_dropped_events(uint64_t count)
{
    if (state_is_writable())
        __atomic_fetch_add(&ring_header()->events_dropped, count, __ATOMIC_RELAXED);
}

uint32_t change_count(void)
{
    return snapshot_changes(state_bytes());
}

void wait_for_change(uint32_t since, int64_t nanoseconds)
{
    snapshot_wait(state_bytes(), since, nanoseconds);
}

/* ---- adding events ------------------------------------------------------------------------------------ */

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* The time of events, which simctl can stop and move. */
static uint64_t event_clock_ns(const struct sim_node_state *now)
{
    if (now->clock_frozen_ns != 0)
        return (uint64_t)now->clock_frozen_ns;
    return (uint64_t)((int64_t)now_ns() + now->clock_offset_ns);
}

void append_event(const struct transaction *transaction, unsigned gpu, uint64_t type)
{
    uint64_t sequence = newest_event() + 1;
    struct sim_event *record = record_of(sequence);
    __atomic_store_n(&record->sequence, 0, __ATOMIC_RELEASE); /* from here on, readers ignore the record */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    record->time_ns = event_clock_ns(transaction->next);
    record->type = type;
    record->data = 0;
    record->gpu = gpu;
    record->gpu_instance = record->compute_instance = SIM_NO_INSTANCE;
    __atomic_store_n(&record->sequence, sequence, __ATOMIC_RELEASE);
    __atomic_store_n(&ring_header()->event_head, sequence, __ATOMIC_RELEASE);
}

void discard_events(void)
{
    __atomic_store_n(&ring_header()->event_floor, newest_event(), __ATOMIC_RELEASE);
}
