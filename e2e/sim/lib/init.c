/*
 * Initialisation: the reference count, and when the state file may be unmapped.
 *
 * Calls announce themselves before they look whether NVML is initialised, and the last shutdown looks for announced
 * calls after it has ended the session; so either the call sees the end or the shutdown sees the call, and leaves the
 * mapping to the next init. A fork in between starts the child with no calls under way and the lock free.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* Maps the file unless a session already uses one, and announces the init that goes on with it. */
static nvml_code begin_init(void)
{
    pthread_once(&fork_handlers, install_fork_handlers);
    session_lock();
    nvml_code code = NVML_SUCCESS;
    bool in_use = references > 0 || __atomic_load_n(&calls_under_way, __ATOMIC_SEQ_CST) > 0;
    if (!in_use || !state_is_open())
        code = state_open();
    if (code == NVML_SUCCESS)
        __atomic_fetch_add(&calls_under_way, 1, __ATOMIC_SEQ_CST);
    session_unlock();
    return code;
}

static void finish_init(nvml_code code)
{
    session_lock();
    if (code == NVML_SUCCESS)
        __atomic_fetch_add(&references, 1, __ATOMIC_SEQ_CST);
    session_unlock();
}

/* A node that shares its boots with this machine is as configured again after one (§10.6). */
static nvml_code follow_boot(void)
{
    struct boot_id now, known;
    if (!read_boot_id(&known) || call_needs_privilege() != NVML_SUCCESS)
        return NVML_SUCCESS;
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NVML_SUCCESS;
    bool complete = read(file, now.text, sizeof now.text) == sizeof now.text;
    close(file);
    bool same = memcmp(now.text, known.text, sizeof now.text) == 0;
    return !complete || same ? NVML_SUCCESS : boot(&now);
}

static nvml_code check_node(unsigned flags)
{
    nvml_code code = follow_boot();
    if (code == NVML_SUCCESS && !module_is_loaded())
        return NVML_DRIVER_NOT_LOADED;
    if (code != NVML_SUCCESS || flags & NVML_INIT_NO_GPUS || count_visible_gpus() > 0)
        return code;
    return description()->init_without_gpus;
}

static nvml_code initialize(enum function function, unsigned flags)
{
    if (flags & ~(unsigned)(NVML_INIT_NO_GPUS | NVML_INIT_NO_ATTACH | NVML_INIT_FORCE))
        return NVML_INVALID_ARGUMENT;
    nvml_code code = begin_init();
    if (code != NVML_SUCCESS)
        return code;
    struct call call __attribute__((cleanup(call_leave))) = {.function = function, .entered = true};
    code = apply_rules(&call, SIM_ANY_GPU);
    if (code == NVML_SUCCESS)
        code = check_node(flags);
    finish_init(code);
    return call_answer(&call, code);
}

EXPORT nvml_code nvmlInit(void)
{
    return initialize(F_nvmlInit, 0);
}
ALIAS(nvmlInit_v1, nvmlInit);

EXPORT nvml_code nvmlInit_v2(void)
{
    return initialize(F_nvmlInit_v2, 0);
}

EXPORT nvml_code nvmlInitWithFlags(unsigned flags)
{
    return initialize(F_nvmlInitWithFlags, flags);
}

static nvml_code shut_down(void)
{
    CALL(nvmlShutdown);
    REQUIRE_OK(apply_rules(&call, SIM_ANY_GPU));
    session_lock();
    bool open = references > 0;
    if (open && __atomic_sub_fetch(&references, 1, __ATOMIC_SEQ_CST) == 0)
        event_sets_free();
    session_unlock();
    RETURN(open ? NVML_SUCCESS : NVML_UNINITIALIZED);
}

EXPORT nvml_code nvmlShutdown(void)
{
    nvml_code code = shut_down();
    session_lock();
    if (references == 0 && __atomic_load_n(&calls_under_way, __ATOMIC_SEQ_CST) == 0)
        state_close();
    session_unlock();
    return code;
}
