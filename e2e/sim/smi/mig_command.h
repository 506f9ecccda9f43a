// SPDX-License-Identifier: Apache-2.0

/* What the parts of nvidia-smi mig share: its command line, and the instances and profiles of a GPU. */
#pragma once

#include "smi.h"

enum { MAX_PROFILES = 32, MAX_INSTANCES = 64 };

enum mig_action {
    MIG_NOTHING,
    MIG_LIST_PROFILES,
    MIG_LIST_PLACEMENTS,
    MIG_LIST_INSTANCES,
    MIG_LIST_COMPUTE_PROFILES,
    MIG_LIST_COMPUTE_INSTANCES,
    MIG_CREATE,
    MIG_CREATE_COMPUTE,
    MIG_DESTROY,
    MIG_DESTROY_COMPUTE
};

struct mig_options {
    enum mig_action action;
    const char *profiles;      /* -cgi, -cci: ids or names, comma separated; NULL: the largest compute instance */
    const char *instances;     /* -gi: ids, comma separated; NULL: all */
    const char *computes;      /* -ci: the same */
    bool fills;                /* -C: a compute instance that covers each new GPU instance */
};

struct gpu_instance {
    void *handle;
    nvml_gi_info info;
    nvml_gi_profile_v2 profile;
};

struct compute_instance {
    void *handle;
    nvml_ci_info info;
    nvml_ci_profile_v2 profile;
};

/* mig_instances.c: each returns how many there are, in the order of NVML's profiles, then of ids. A list has the ids
   that are wanted, comma separated; NULL: all. */
unsigned profiles_of(nvml_device gpu, nvml_gi_profile_v2 found[MAX_PROFILES]);
unsigned gpu_instances_of(nvml_device gpu, const char *list, struct gpu_instance found[MAX_INSTANCES]);
unsigned compute_profiles_of(const struct gpu_instance *of, nvml_ci_profile_v2 found[MAX_PROFILES]);
unsigned compute_instances_of(
    const struct gpu_instance *of, const char *list, struct compute_instance found[MAX_INSTANCES]);
/* mig_instances.c: the number of a GPU in the texts. */
unsigned number_of(nvml_device gpu);
/* mig_instances.c: says that there is none; returns the exit code. */
int not_found(const char *what);

/* mig_lists.c, mig_instance_changes.c: one command for GPUs that support MIG; they return the exit code. */
int mig_list(const struct mig_options *options, const struct devices *gpus);
int mig_create(const struct mig_options *options, const struct devices *gpus);
int mig_create_compute(const struct mig_options *options, const struct devices *gpus);
int mig_destroy(const struct mig_options *options, const struct devices *gpus);
int mig_destroy_compute(const struct mig_options *options, const struct devices *gpus);
