// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi mig: its command line, and the GPUs that it is about. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mig_command.h"

static struct mig_options wanted;

static const char USAGE[] =
    "nvidia-smi mig -- List, make and destroy MIG instances.\n"
    "\n"
    "    -i,    --id=ID[,ID...]            Only these GPUs: index, UUID or PCI bus id.\n"
    "    -gi,   --gpu-instance-id=ID[,ID...]\n"
    "                                      Only these GPU instances.\n"
    "    -ci,   --compute-instance-id=ID[,ID...]\n"
    "                                      Only these compute instances.\n"
    "    -lgip, --list-gpu-instance-profiles\n"
    "    -lgipp, --list-gpu-instance-possible-placements\n"
    "    -lgi,  --list-gpu-instances\n"
    "    -lcip, --list-compute-instance-profiles\n"
    "    -lci,  --list-compute-instances   Show them.\n"
    "    -cgi,  --create-gpu-instance=PROFILE[:START][,...]\n"
    "                                      Make GPU instances: id or name of a profile, and its first\n"
    "                                      memory slice.\n"
    "    -C,    --default-compute-instance With -cgi: make a compute instance that covers each.\n"
    "    -cci,  --create-compute-instance[=PROFILE[,...]]\n"
    "                                      Make compute instances: by default one that covers the GPU\n"
    "                                      instance.\n"
    "    -dci,  --destroy-compute-instance Destroy compute instances.\n"
    "    -dgi,  --destroy-gpu-instance     Destroy GPU instances, which have no compute instances any more.\n"
    "    -h,    --help                     Show this text.\n";

struct flag {
    const char *brief, *name;
    enum mig_action action;
};

static const struct flag ACTIONS[] = {
    {"-lgip", "--list-gpu-instance-profiles", MIG_LIST_PROFILES},
    {"-lgipp", "--list-gpu-instance-possible-placements", MIG_LIST_PLACEMENTS},
    {"-lgi", "--list-gpu-instances", MIG_LIST_INSTANCES},
    {"-lcip", "--list-compute-instance-profiles", MIG_LIST_COMPUTE_PROFILES},
    {"-lci", "--list-compute-instances", MIG_LIST_COMPUTE_INSTANCES},
    {"-dgi", "--destroy-gpu-instance", MIG_DESTROY},
    {"-dci", "--destroy-compute-instance", MIG_DESTROY_COMPUTE},
};

static enum mig_action action_of(const char *argument)
{
    for (unsigned i = 0; i < sizeof ACTIONS / sizeof *ACTIONS; i++)
        if (strcmp(argument, ACTIONS[i].brief) == 0 || strcmp(argument, ACTIONS[i].name) == 0)
            return ACTIONS[i].action;
    return MIG_NOTHING;
}

/* -cci has a value only if another word follows that is no option. */
static bool is_bare_compute(char **arguments, int place)
{
    const char *argument = arguments[place], *next = arguments[place + 1];
    if (strcmp(argument, "-cci") != 0 && strcmp(argument, "--create-compute-instance") != 0)
        return false;
    return next == NULL || next[0] == '-';
}

static const char *either(const char *brief, const char *name, char **arguments, int *place)
{
    const char *value = value_of(brief, arguments, place);
    return value != NULL ? value : value_of(name, arguments, place);
}

int mig_parse(char **arguments, struct options *options)
{
    const char *value;
    options->command = COMMAND_HELP;
    options->usage = USAGE;
    for (int place = 0; arguments[place] != NULL; place++) {
        const char *argument = arguments[place];
        enum mig_action action = action_of(argument);
        if (strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0) {
            options->command = COMMAND_HELP;
            return EXIT_SUCCESS;
        }
        if (action == MIG_NOTHING && is_bare_compute(arguments, place))
            action = MIG_CREATE_COMPUTE;
        if (strcmp(argument, "-C") == 0 || strcmp(argument, "--default-compute-instance") == 0) {
            wanted.fills = true;
            continue;
        }
        if (action != MIG_NOTHING)
            ;
        else if ((value = either("-cgi", "--create-gpu-instance", arguments, &place)))
            wanted.profiles = value, action = MIG_CREATE;
        else if ((value = either("-cci", "--create-compute-instance", arguments, &place)))
            wanted.profiles = value, action = MIG_CREATE_COMPUTE;
        else if ((value = either("-i", "--id", arguments, &place)))
            options->ids = value;
        else if ((value = either("-gi", "--gpu-instance-id", arguments, &place)))
            wanted.instances = value;
        else if ((value = either("-ci", "--compute-instance-id", arguments, &place)))
            wanted.computes = value;
        else
            return bad_argument("Invalid combination of input arguments: %s.\n", argument);
        if (action == MIG_NOTHING)
            continue;
        if (wanted.action != MIG_NOTHING)
            return bad_argument("Invalid combination of input arguments: %s.\n", argument);
        wanted.action = action;
        options->command = COMMAND_MIG;
    }
    return EXIT_SUCCESS;
}

/* What can be made is known of each GPU that supports MIG; what there is, of one in MIG mode. */
static void select_gpus(const struct devices *devices, bool must_be_on, struct devices *found)
{
    found->count = 0;
    for (unsigned i = 0; i < devices->count; i++) {
        unsigned current, pending;
        if (nvml.DeviceGetMigMode(devices->device[i], &current, &pending) == NVML_SUCCESS && (current || !must_be_on))
            found->device[found->count++] = devices->device[i];
    }
}

int mig_run(const struct devices *devices)
{
    bool is_of_profiles = wanted.action == MIG_LIST_PROFILES || wanted.action == MIG_LIST_PLACEMENTS;
    struct devices gpus;
    select_gpus(devices, !is_of_profiles, &gpus);
    if (gpus.count == 0) {
        printf("No MIG-%s devices found.\n", is_of_profiles ? "supported" : "enabled");
        return exit_code_of(NVML_NOT_FOUND);
    }
    switch (wanted.action) {
    case MIG_CREATE:
        return mig_create(&wanted, &gpus);
    case MIG_CREATE_COMPUTE:
        return mig_create_compute(&wanted, &gpus);
    case MIG_DESTROY:
        return mig_destroy(&wanted, &gpus);
    case MIG_DESTROY_COMPUTE:
        return mig_destroy_compute(&wanted, &gpus);
    default:
        return mig_list(&wanted, &gpus);
    }
}
