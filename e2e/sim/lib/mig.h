/* What the files about MIG share: profiles of GPU and compute instances, and handles of GPU instances. */
#pragma once

#include "sim.h"

const struct sim_mig_profile *profile_by_id(const struct gpu *gpu, unsigned id);

/* A way to cut a GPU instance; `id` is also its enumerator. */
struct compute_profile {
    unsigned id, slices;
};
const struct compute_profile *compute_profile(const struct sim_mig_profile *of, unsigned id);
unsigned compute_multiprocessors(const struct gpu *gpu, const struct sim_mig_profile *of, unsigned slices);
/* "MIG 3g.40gb", or "MIG 1c.3g.40gb" for a part of it. */
void compute_name(const struct sim_mig_profile *of, unsigned slices, char name[96]);

void *handle_of_gpu_instance(unsigned gpu, unsigned id, uint64_t incarnation);

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
