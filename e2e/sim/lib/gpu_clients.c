// SPDX-License-Identifier: Apache-2.0

/*
 * The time that a GPU needs before it answers the first client (nvml-simulator.md §10.7).
 *
 * The driver initialises a GPU for its first client and stops it after the last one, unless it is in persistence mode.
 * A process is a client from its first use of a GPU until its session ends, or it does: it holds a lock on a byte of
 * the state file, which the kernel takes away from a process that is killed. Another byte is locked meanwhile, so that
 * whoever comes during an initialisation waits for its end. A third one is locked as long as the session lasts, as the
 * real NVML has /dev/nvidiactl open, which keeps the kernel module from being unloaded.
 */
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

static struct {
    pthread_mutex_t mutex;
    bool is_client;
} gpus[SIM_MAX_GPUS] = {[0 ... SIM_MAX_GPUS - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

static pthread_once_t fork_handler = PTHREAD_ONCE_INIT;

static bool is_client(unsigned gpu)
{
    return __atomic_load_n(&gpus[gpu].is_client, __ATOMIC_ACQUIRE);
}

bool has_other_clients(unsigned gpu)
{
    return is_locked(SIM_CLIENT_LOCKS + gpu, 1);
}

/* What a GPU loses that was stopped after its last client: settings without a place in its firmware. */
static void forget_settings(unsigned gpu)
{
    const struct sim_gpu_state *initial = &configured_state()->gpus[gpu];
    struct sim_gpu_state now = read_gpu(gpu);
    struct transaction change;
    bool kept = now.compute_mode == initial->compute_mode && now.time_slice == initial->time_slice;
    if (kept || transaction_begin(&change) != NVML_SUCCESS)
        return;
    change.next->gpus[gpu].compute_mode = initial->compute_mode;
    change.next->gpus[gpu].time_slice = initial->time_slice;
    transaction_commit(&change);
}

static void initialise(unsigned gpu)
{
    set_lock(F_WRLCK, SIM_INITIALISATION_LOCKS + gpu);
    struct sim_gpu_state now = read_gpu(gpu);
    if (!now.persistence && !has_other_clients(gpu)) {
        sleep_ms(now.initialisation_ms);
        forget_settings(gpu);
    }
    if (session_is_initialized()) { /* it may have ended meanwhile */
        set_lock(F_RDLCK, SIM_CLIENT_LOCKS + gpu);
        __atomic_store_n(&gpus[gpu].is_client, true, __ATOMIC_RELEASE);
    }
    set_lock(F_UNLCK, SIM_INITIALISATION_LOCKS + gpu);
}

/* In a forked child: no other thread initialises a GPU. */
static void after_fork_in_child(void)
{
    for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
        pthread_mutex_init(&gpus[gpu].mutex, NULL);
}

static void install_fork_handler(void)
{
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

void use_gpu(unsigned gpu)
{
    if (is_client(gpu))
        return;
    pthread_once(&fork_handler, install_fork_handler);
    pthread_mutex_lock(&gpus[gpu].mutex);
    if (!is_client(gpu))
        initialise(gpu);
    pthread_mutex_unlock(&gpus[gpu].mutex);
}

void open_driver(void)
{
    set_lock(F_RDLCK, SIM_SESSION_LOCK);
}

void close_driver(void)
{
    set_lock(F_UNLCK, SIM_SESSION_LOCK);
}

void release_gpus(bool closed)
{
    for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
        if (__atomic_exchange_n(&gpus[gpu].is_client, false, __ATOMIC_ACQ_REL) && closed)
            set_lock(F_UNLCK, SIM_CLIENT_LOCKS + gpu);
}
