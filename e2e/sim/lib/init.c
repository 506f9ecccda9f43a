// SPDX-License-Identifier: Apache-2.0

/* nvmlInit and nvmlShutdown, and what an init finds on its node. */
#include <fcntl.h>
#include <unistd.h>

#include "sim.h"

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
    if (code != NVML_SUCCESS)
        return code;
    session_lock();
    unsigned count = session_is_initialized() ? count_visible_gpus() : list_gpus();
    session_unlock();
    return flags & NVML_INIT_NO_GPUS || count > 0 ? NVML_SUCCESS : description()->init_without_gpus;
}

static nvml_code initialize(enum function function, unsigned flags)
{
    if (flags & ~(unsigned)(NVML_INIT_NO_GPUS | NVML_INIT_NO_ATTACH | NVML_INIT_FORCE))
        return NVML_INVALID_ARGUMENT;
    nvml_code code = session_open();
    if (code != NVML_SUCCESS)
        return code;
    struct call call __attribute__((cleanup(call_leave))) = {.function = function, .entered = true};
    code = apply_rules(&call, SIM_ANY_GPU);
    if (code == NVML_SUCCESS)
        code = check_node(flags);
    session_lock();
    if (code == NVML_SUCCESS) {
        if (!session_is_initialized())
            open_driver();
        session_add_reference();
    }
    session_unlock();
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

static void end_session(void)
{
    bool closed = event_sets_end();
    system_event_sets_end();
    release_gpus(closed);
    if (closed)
        close_driver();
    else
        state_keep_file();
}

static nvml_code shut_down(void)
{
    CALL(nvmlShutdown);
    REQUIRE_OK(apply_rules(&call, SIM_ANY_GPU));
    session_lock();
    bool open = session_is_initialized();
    if (open && session_drop_reference())
        end_session();
    session_unlock();
    RETURN(open ? NVML_SUCCESS : NVML_UNINITIALIZED);
}

EXPORT nvml_code nvmlShutdown(void)
{
    nvml_code code = shut_down();
    session_close();
    return code;
}
