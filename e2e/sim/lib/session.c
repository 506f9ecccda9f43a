// SPDX-License-Identifier: Apache-2.0

/*
 * The session of this process: its lock, the count of inits, and when the state file may be unmapped.
 *
 * Calls announce themselves before they look whether NVML is initialised, and the last shutdown looks for announced
 * calls after it has ended the session; so either the call sees the end or the shutdown sees the call, and leaves the
 * mapping to the next init. A fork in between starts the child with no calls under way and the lock free.
 */
#include <pthread.h>

#include "sim.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_handlers = PTHREAD_ONCE_INIT;
static unsigned references; /* changed under the lock, read without */
static unsigned calls_under_way;

void session_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void session_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static void after_fork_in_child(void)
{
    __atomic_store_n(&calls_under_way, 0, __ATOMIC_SEQ_CST);
    session_unlock();
}

static void install_fork_handlers(void)
{
    pthread_atfork(session_lock, session_unlock, after_fork_in_child);
}

bool session_is_initialized(void)
{
    return __atomic_load_n(&references, __ATOMIC_SEQ_CST) > 0;
}

bool session_enter(void)
{
    __atomic_fetch_add(&calls_under_way, 1, __ATOMIC_SEQ_CST);
    if (session_is_initialized())
        return true;
    session_leave();
    return false;
}

void session_leave(void)
{
    __atomic_fetch_sub(&calls_under_way, 1, __ATOMIC_SEQ_CST);
}

/* Called with the lock held. */
static bool is_in_use(void)
{
    return references > 0 || __atomic_load_n(&calls_under_way, __ATOMIC_SEQ_CST) > 0;
}

nvml_code session_open(void)
{
    pthread_once(&fork_handlers, install_fork_handlers);
    session_lock();
    nvml_code code = NVML_SUCCESS;
    if (references == 0 || !state_is_open())
        code = state_open(is_in_use());
    if (code == NVML_SUCCESS)
        __atomic_fetch_add(&calls_under_way, 1, __ATOMIC_SEQ_CST);
    session_unlock();
    return code;
}

void session_close(void)
{
    session_lock();
    if (!is_in_use())
        state_close();
    session_unlock();
}

void session_add_reference(void)
{
    __atomic_fetch_add(&references, 1, __ATOMIC_SEQ_CST);
}

bool session_drop_reference(void)
{
    return __atomic_sub_fetch(&references, 1, __ATOMIC_SEQ_CST) == 0;
}
