// SPDX-License-Identifier: Apache-2.0

/* Fault rules (nvml-simulator.md §11): which of them apply to a call, and what they do to it. */
#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <time.h>

#include "sim.h"

static const char *const function_names[FUNCTION_COUNT] = FUNCTION_NAMES;

void sleep_ms(unsigned milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

static bool exists(uint32_t id)
{
    struct sim_rule rules[SIM_MAX_RULES];
    if (read_rules(rules) == 0)
        return false;
    for (unsigned i = 0; i < SIM_MAX_RULES; i++)
        if (rules[i].id == id)
            return true;
    return false;
}

static void delay(const struct sim_rule *rule)
{
    if (rule->delay_ms != SIM_UNTIL_REMOVED) {
        sleep_ms((unsigned)rule->delay_ms);
        return;
    }
    while (exists(rule->id))
        sleep_ms(10);
}

static bool matches(const struct sim_rule *rule, const char *function, int gpu)
{
    return rule->id != 0 && (rule->gpu == SIM_ANY_GPU || rule->gpu == gpu) &&
           fnmatch(rule->function, function, 0) == 0;
}

/* Which call of those that match this is, from 0. Without write access a process counts for itself. */
static uint64_t count_match(unsigned place)
{
    static uint64_t own[SIM_MAX_RULES];
    uint64_t *seen = state_is_writable() ? &rule_hits()[place].seen : &own[place];
    return __atomic_fetch_add(seen, 1, __ATOMIC_RELAXED);
}

/* The same number for the same call of the same rule: chance is repeatable (splitmix64). */
static uint32_t draw(uint32_t rule, uint64_t call)
{
    uint64_t number = ((uint64_t)description()->seed << 32 | rule) + (call + 1) * UINT64_C(0x9E3779B97F4A7C15);
    number = (number ^ number >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    number = (number ^ number >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((number ^ number >> 31) % SIM_ALWAYS);
}

static bool is_due(const struct sim_rule *rule, unsigned place)
{
    uint64_t call = count_match(place);
    return call >= rule->after_calls && draw(rule->id, call) < rule->chance;
}

/* Counts the hit; false when the rule has none left. A reader without write access sees no count go down. */
static bool take(const struct sim_rule *rule, struct sim_rule_hits *counter)
{
    uint64_t hits = __atomic_load_n(&counter->hits, __ATOMIC_RELAXED);
    do {
        if (rule->times != 0 && hits >= rule->times)
            return false;
        if (!state_is_writable())
            return true;
    } while (!__atomic_compare_exchange_n(&counter->hits, &hits, hits + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return true;
}

/* What a rule that applies does to its call; the code to fail with at once. */
static nvml_code disturb(struct call *call, const struct sim_rule *rule)
{
    delay(rule);
    nvml_code code = rule->result == SIM_NO_RESULT ? NVML_SUCCESS : (nvml_code)rule->result;
    if (rule->activation_status != SIM_NO_RESULT) {
        call->activation = rule->do_work ? ACTIVATION_REPORTED : ACTIVATION_GIVEN;
        call->activation_status = (nvml_code)rule->activation_status;
    }
    if (rule->do_work) {
        call->killed |= rule->abort != 0;
        call->reported = code;
        return NVML_SUCCESS;
    }
    if (rule->abort)
        raise(SIGKILL);
    return code;
}

nvml_code ask_driver(struct call *call, int gpu)
{
    nvml_code code = apply_rules(call, gpu);
    return code != NVML_SUCCESS || module_is_loaded() ? code : NVML_DRIVER_NOT_LOADED;
}

nvml_code apply_rules_of(struct call *call, const char *function, int gpu)
{
    struct sim_rule rules[SIM_MAX_RULES];
    nvml_code code = NVML_SUCCESS;
    if (read_rules(rules) == 0)
        return NVML_SUCCESS;
    for (unsigned i = 0; i < SIM_MAX_RULES && code == NVML_SUCCESS; i++) {
        if (matches(&rules[i], function, gpu) && is_due(&rules[i], i) && take(&rules[i], rule_hits() + i))
            code = disturb(call, &rules[i]);
    }
    return code;
}

nvml_code apply_rules(struct call *call, int gpu)
{
    unsigned latency_ms = description()->latency_ms[call->function];
    if (latency_ms > 0)
        sleep_ms(latency_ms);
    return apply_rules_of(call, function_names[call->function], gpu);
}
