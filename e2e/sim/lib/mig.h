// SPDX-License-Identifier: Apache-2.0

/* What the files about MIG share: profiles of GPU and compute instances, and handles of GPU instances. */
#pragma once

#include "sim.h"

/* Whether the GPU has a MIG mode, on or off. */
static inline bool can_do_mig(const struct gpu *gpu)
{
    return gpu->spec->mig_profile_count > 0;
}

const struct sim_mig_profile *profile_by_id(const struct gpu *gpu, unsigned id);

/* A way to cut a GPU instance; `id` is also its enumerator. */
struct compute_profile {
    unsigned id, slices;
};
const struct compute_profile *compute_profile(const struct sim_mig_profile *of, unsigned id);
unsigned compute_multiprocessors(const struct gpu *gpu, const struct sim_mig_profile *of, unsigned slices);
/* "MIG 3g.40gb", or "MIG 1c.3g.40gb" for a part of it. */
void compute_name(const struct sim_mig_profile *of, unsigned slices, char name[96]);

/* Where compute instances of a size may start in a GPU instance, in order; how many places there are. */
unsigned compute_starts(unsigned size, unsigned slices, unsigned starts[SIM_MAX_COMPUTE_INSTANCES]);
/* Whether no compute instance of the GPU instance has these compute slices. */
bool is_free(const struct sim_gpu_instance *record, unsigned start, unsigned size);
/* Whether a GPU instance of this profile can exist there besides the recorded ones. */
bool fits(const struct gpu *gpu, const struct sim_mig_profile *profile, unsigned start,
          const struct sim_gpu_instance *records);

void *handle_of_gpu_instance(unsigned gpu, unsigned id, uint64_t incarnation);
void *handle_of_compute_instance(const struct instance *of, const struct sim_gpu_instance *record, unsigned id);

/* The number of a GPU instance's capability (§7.9). Its compute instance c has 1 + c more. */
enum { CAPABILITY_FIRST = 3, CAPABLE_GPU_INSTANCES = 15, CAPABILITIES_PER_GPU_INSTANCE = 1 + SIM_MAX_COMPUTE_INSTANCES };
static inline unsigned capability_of(unsigned minor, unsigned gpu_instance)
{
    unsigned instances = CAPABLE_GPU_INSTANCES * minor + gpu_instance;
    return CAPABILITY_FIRST + CAPABILITIES_PER_GPU_INSTANCE * instances;
}

/*
 * A change of the instances of one GPU (mig_changes.c): begins if the GPU is in MIG mode and still there; ends with the
 * capability files, the event and the new state, or with nothing where `code` is an error, which it returns.
 */
struct mig_change {
    struct transaction transaction;
    unsigned gpu;
    struct sim_gpu_state *state;
    struct sim_gpu_tables *tables;
};
nvml_code mig_change_begin(struct mig_change *change, const struct gpu *gpu);
nvml_code mig_change_end(struct mig_change *change, nvml_code code);
/* Whether a process uses the GPU instance, or this compute instance in it. */
bool is_used(const struct sim_gpu_tables *tables, unsigned gpu_instance);
bool is_compute_used(const struct sim_gpu_tables *tables, unsigned gpu_instance, unsigned compute_instance);

/* Declares `gpu` and `record`, of a GPU instance that exists. */
#define GPU_INSTANCE_OF(handle)                                                                  \
    struct instance instance;                                                                    \
    struct sim_gpu_instance record;                                                              \
    struct gpu gpu;                                                                              \
    REQUIRE(instance_of(handle, GPU_INSTANCE, &instance) && instance_exists(&instance, &record), \
            NVML_INVALID_ARGUMENT);                                                              \
    REQUIRE_OK(open_gpu(instance.gpu, &call, &gpu));                                             \
    const struct sim_mig_profile *cut = profile_by_id(&gpu, record.profile);                     \
    REQUIRE(cut != NULL, NVML_UNKNOWN)

/* Some questions about MIG can be reserved to the privileged. */
#define PRIVILEGED_QUERY()                   \
    do {                                     \
        if (description()->privileged_queries) \
            REQUIRE_OK(call_needs_privilege()); \
    } while (0)
