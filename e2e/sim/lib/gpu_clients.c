// SPDX-License-Identifier: Apache-2.0

/*
 * The time that a GPU needs before it answers the first client (nvml-simulator.md §10.7).
 *
 * The driver initialises a GPU for its first client and stops it after the last one, unless it is in persistence mode.
 * A process is a client from its first use of a GPU until its session ends, or it does: it holds a lock on a byte of
 * the state file, which the kernel takes away from a process that is killed. Another byte is locked meanwhile, so that
 * whoever comes during an initialisation waits for its end. It also has the node of the GPU open, by which programs that
 * know nothing of this library see it. A third byte is locked as long as the session lasts, as the
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
    int node; /* -1: this process sees none */
} gpus[SIM_MAX_GPUS] = {[0 ... SIM_MAX_GPUS - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER, .node = -1}};

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

static void close_node(unsigned gpu)
{
    if (gpus[gpu].node >= 0)
        close(gpus[gpu].node);
    gpus[gpu].node = -1;
}

/* What a GPU answers that is not open yet. One whose driver is leaving it, or that is drained, takes nobody. */
static nvml_code refusal(unsigned gpu)
{
    struct sim_gpu_state now = read_gpu(gpu);
    if (now.removing || !now.bound_to_nvidia)
        return NVML_GPU_IS_LOST;
    return now.drained || now.broken == SIM_BROKEN_NOW ? NVML_UNKNOWN : NVML_SUCCESS;
}

/* The node is open before the GPU is looked at again: whoever unbinds it then finds it open. */
static nvml_code open_gpu_node(unsigned gpu)
{
    gpus[gpu].node = open_device_node(gpu);
    nvml_code code = refusal(gpu);
    if (code != NVML_SUCCESS)
        close_node(gpu);
    return code;
}

static nvml_code initialise(unsigned gpu)
{
    set_lock(F_WRLCK, SIM_INITIALISATION_LOCKS + gpu);
    struct sim_gpu_state now = read_gpu(gpu);
    nvml_code code = refusal(gpu);
    if (code == NVML_SUCCESS && !now.persistence && !has_other_clients(gpu)) {
        sleep_ms(now.initialisation_ms);
        forget_settings(gpu);
    }
    if (code == NVML_SUCCESS && session_is_initialized()) { /* it may have ended meanwhile */
        code = open_gpu_node(gpu);
        if (code == NVML_SUCCESS) {
            set_lock(F_RDLCK, SIM_CLIENT_LOCKS + gpu);
            __atomic_store_n(&gpus[gpu].is_client, true, __ATOMIC_RELEASE);
        }
    }
    set_lock(F_UNLCK, SIM_INITIALISATION_LOCKS + gpu);
    return code;
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

nvml_code use_gpu(unsigned gpu)
{
    nvml_code code = NVML_SUCCESS;
    if (is_client(gpu))
        return NVML_SUCCESS;
    pthread_once(&fork_handler, install_fork_handler);
    pthread_mutex_lock(&gpus[gpu].mutex);
    if (!is_client(gpu))
        code = initialise(gpu);
    pthread_mutex_unlock(&gpus[gpu].mutex);
    return code;
}

void open_driver(void)
{
    set_lock(F_RDLCK, SIM_SESSION_LOCK);
}

void close_driver(void)
{
    set_lock(F_UNLCK, SIM_SESSION_LOCK);
}

void release_gpu(unsigned gpu)
{
    if (!__atomic_exchange_n(&gpus[gpu].is_client, false, __ATOMIC_ACQ_REL))
        return;
    close_node(gpu);
    set_lock(F_UNLCK, SIM_CLIENT_LOCKS + gpu);
}

void release_gpus(bool closed)
{
    for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        if (closed)
            release_gpu(gpu);
        __atomic_store_n(&gpus[gpu].is_client, false, __ATOMIC_RELEASE);
    }
}
