/* Fault rules (spec §11): which of them apply to a call, and what they do to it. */
#include <errno.h>
#include <fnmatch.h>
#include <time.h>

#include "sim.h"

static const char *const function_names[FUNCTION_COUNT] = FUNCTION_NAMES;

static void sleep_ms(unsigned milliseconds)
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

static bool matches(const struct sim_rule *rule, enum function function, int gpu)
{
    return rule->id != 0 && (rule->gpu == SIM_ANY_GPU || rule->gpu == gpu) &&
           fnmatch(rule->function, function_names[function], 0) == 0;
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

nvml_code apply_rules(enum function function, int gpu)
{
    struct sim_rule rules[SIM_MAX_RULES];
    nvml_code code = NVML_SUCCESS;
    unsigned latency_ms = description()->latency_ms[function];
    if (latency_ms > 0)
        sleep_ms(latency_ms);
    if (read_rules(rules) == 0)
        return NVML_SUCCESS;
    for (unsigned i = 0; i < SIM_MAX_RULES && code == NVML_SUCCESS; i++) {
        if (!matches(&rules[i], function, gpu) || !take(&rules[i], rule_hits() + i))
            continue;
        delay(&rules[i]);
        if (rules[i].result != SIM_NO_RESULT)
            code = (nvml_code)rules[i].result;
    }
    return code;
}
