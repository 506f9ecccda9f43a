// SPDX-License-Identifier: Apache-2.0

/*
 * The state file as every program reads it that maps it, without a lock (nvml-simulator.md §10.2).
 *
 * There are two copies of the changing state. The low bit of `generation` names the published one; a writer fills
 * the other and then adds one, so that readers only repeat when two writes passed while they copied.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <time.h>
#include <unistd.h>

#include "layout.h" /* generated from nvdra_sim/state_file/layout.py */

enum { SNAPSHOT_POLL_NS = 10000000 };

static inline struct sim_header *snapshot_header(void *bytes)
{
    return bytes;
}

/* Whether these are SIM_FILE_SIZE bytes of a file with this program's layout. */
static inline bool snapshot_is_ours(void *bytes)
{
    const struct sim_header *header = snapshot_header(bytes);
    return memcmp(header->magic, SIM_MAGIC, sizeof header->magic) == 0 && header->byte_order == SIM_BYTE_ORDER &&
           header->size == SIM_FILE_SIZE && header->layout == SIM_LAYOUT;
}

static inline uint64_t snapshot_generation(void *bytes)
{
    return __atomic_load_n(&snapshot_header(bytes)->generation, __ATOMIC_ACQUIRE);
}

static inline struct sim_node_state *snapshot_copy(void *bytes, uint64_t generation)
{
    return (void *)((unsigned char *)bytes + (generation & 1 ? SIM_AT_STATE1 : SIM_AT_STATE0));
}

/* Repeats `statement`, which copies from `state`, until no writer can have touched that copy meanwhile. */
#define SNAPSHOT_READ(bytes, state, statement)                                      \
    for (;;) {                                                                      \
        uint64_t generation_ = snapshot_generation(bytes);                          \
        const struct sim_node_state *state = snapshot_copy((bytes), generation_);   \
        statement;                                                                  \
        __atomic_thread_fence(__ATOMIC_ACQUIRE);                                    \
        if (snapshot_generation(bytes) == generation_)                              \
            break;                                                                  \
    }

/* A number that every change and every event moves on. */
static inline uint32_t snapshot_changes(void *bytes)
{
    return __atomic_load_n(&snapshot_header(bytes)->wake, __ATOMIC_ACQUIRE);
}

/* Sleeps until that number is another one than `since`, or the time is over. May return before either. */
static inline void snapshot_wait(void *bytes, uint32_t since, int64_t nanoseconds)
{
    struct timespec left = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    long done = syscall(SYS_futex, &snapshot_header(bytes)->wake, FUTEX_WAIT, since, &left, NULL, 0);
    if (done == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT)
        return;
    struct timespec pause = {0, nanoseconds < SNAPSHOT_POLL_NS ? nanoseconds : SNAPSHOT_POLL_NS};
    nanosleep(&pause, NULL); /* where futexes are forbidden */
}
