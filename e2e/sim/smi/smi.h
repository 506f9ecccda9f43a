// SPDX-License-Identifier: Apache-2.0

/* What the parts of nvidia-smi share: the command line, the selected GPUs, and how a failure is told. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "nvml.h"

enum { MAX_DEVICES = 64, TEXT = 128 };

/* Exit codes beyond NVML's own (nvml-simulator.md §15). */
enum { EXIT_BAD_ARGUMENT = 2, EXIT_OTHER = 255 };

enum command {
    COMMAND_TABLE,
    COMMAND_LIST,
    COMMAND_QUERY_GPU,
    COMMAND_LOG,
    COMMAND_MIG_MODE,
    COMMAND_COMPUTE_MODE,
    COMMAND_COMPUTE_POLICY,
    COMMAND_PERSISTENCE_MODE,
    COMMAND_RESET,
    COMMAND_MIG,
    COMMAND_VERSION,
    COMMAND_HELP,
    COMMAND_FIELDS
};

struct options {
    enum command command;
    const char *ids;    /* -i: comma separated; NULL means every GPU */
    const char *fields; /* --query-gpu */
    bool header, units; /* of --format=csv */
    bool mig_mode;      /* -mig: on */
    unsigned compute_mode;
    bool persistence_mode; /* -pm: on */
    const char *usage;
    int time_slice; /* compute-policy --set-timeslice; -1: list them */
};

struct devices {
    unsigned count;
    nvml_device device[MAX_DEVICES];
};

/* main.c */
int exit_code_of(nvml_code code);

/* devices.c: the GPUs that `ids` names, in index order where it names none. Prints why it failed. */
nvml_code devices_select(const char *ids, struct devices *devices);

/* devices.c: the MIG devices of a GPU in the order of their indices; none where MIG is off. */
void mig_devices_of(nvml_device device, struct devices *found);

/* fields.c: one fact of one GPU as text without its unit. */
struct field {
    const char *name, *alias, *unit;
    nvml_code (*read)(nvml_device device, char text[TEXT]);
};
const struct field *field_find(const char *name, size_t length);
void fields_print(void);
/* The fact, or what stands for it when NVML has none; true when the GPU is lost. */
bool field_text(const struct field *field, nvml_device device, char text[TEXT]);

/* One command each; they return the exit code. */
int list_print(const struct devices *devices);
int table_print(const struct devices *devices);
/* mig_table.c: the part of the table about MIG devices, where any GPU has MIG on. */
void mig_table_print(const struct devices *devices);
int query_print(const struct options *options, const struct devices *devices);
int log_print(const struct devices *devices);
/* compute_mode.c: the number of a mode by name or number; -1: there is none. */
int compute_mode_of(const char *text);
int compute_mode_set(const struct options *options, const struct devices *devices);
/* compute_policy.c: its own command line, and what it does. */
int compute_policy_parse(char **arguments, struct options *options);
int compute_policy_run(const struct options *options, const struct devices *devices);

/* devices.c: sets something on one GPU after another, until one fails, and returns the exit code. */
int set_on_each(const struct options *options, const struct devices *devices,
                int (*set_one)(const struct options *options, nvml_device device));

/* arguments.c: says what is wrong with an argument, and returns the exit code for it. */
int bad_argument(const char *message, const char *argument);
/* arguments.c: the value of an option written as "--name=value", or as "-x value" in two words; NULL: another option. */
const char *value_of(const char *name, char **arguments, int *place);

int persistence_mode_set(const struct options *options, const struct devices *devices);
int reset_run(const struct devices *devices);
/* mig.c: its own command line, and what it does. */
int mig_parse(char **arguments, struct options *options);
int mig_run(const struct devices *devices);
int mig_mode_set(const struct options *options, const struct devices *devices);
