// SPDX-License-Identifier: Apache-2.0

/* One call: its announcement, its age, its place in the counters, and the right to change anything. */
#include <signal.h>
#include <unistd.h>

#include "sim.h"

static const unsigned function_since[FUNCTION_COUNT] = FUNCTION_SINCE; /* driver branch; 0: all have it */

nvml_code call_enter(struct call *call, enum function function)
{
    call->function = function;
    call->entered = session_enter();
    if (!call->entered)
        return NVML_UNINITIALIZED;
    return function_since[function] > description()->api_level ? NVML_FUNCTION_NOT_FOUND : NVML_SUCCESS;
}

static void count(const struct call *call)
{
    if (!state_is_writable())
        return;
    struct sim_call_counter *counter = call_counters() + call->function;
    __atomic_fetch_add(&counter->calls, 1, __ATOMIC_RELAXED);
    if (call->result != NVML_SUCCESS)
        __atomic_fetch_add(&counter->errors, 1, __ATOMIC_RELAXED);
}

void call_leave(struct call *call)
{
    if (!call->entered)
        return;
    count(call);
    session_leave();
}

nvml_code call_answer(struct call *call, nvml_code code)
{
    if (call->killed)
        raise(SIGKILL);
    return call->result = call->reported != NVML_SUCCESS ? call->reported : code;
}

bool call_is_privileged(void)
{
    return description()->privilege == SIM_PRIVILEGE_NONE || geteuid() == 0;
}

nvml_code call_needs_privilege(void)
{
    return call_is_privileged() && state_is_writable() ? NVML_SUCCESS : NVML_NO_PERMISSION;
}
