// SPDX-License-Identifier: Apache-2.0

/*
 * What the control daemon of MPS, its servers and the CUDA library share: where they meet, and what they tell each
 * other (nvml-simulator.md §17). The files in the pipe directory have the names of the real ones; the messages are the
 * simulator's own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"
#define DEFAULT_LOG_DIRECTORY "/var/log/nvidia-mps"
#define CLIENT_SOCKET "control"             /* anybody connects to it */
#define COMMAND_SOCKET "control_privileged" /* the owner connects to it */

enum { MESSAGE_SIZE = 16384, TEXT_SIZE = 96, MAX_DEVICES = 128 };

/* Results of CUDA calls that the parts of MPS give to each other. */
enum cuda_result {
    CUDA_SUCCESS = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_DEVICE_UNAVAILABLE = 46,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_NOT_FOUND = 500,
    CUDA_MPS_CONNECTION_FAILED = 805,
    CUDA_MPS_RPC_FAILURE = 806,
    CUDA_MPS_MAX_CLIENTS_REACHED = 808,
    CUDA_MPS_CLIENT_TERMINATED = 810,
    CUDA_UNKNOWN = 999,
};

/* ---- the environment (messages.c) ---------------------------------------------------------------------- */

/* The variable's value; the default if it is not set or empty. */
const char *mps_directory(const char *variable, const char *otherwise);

/* ---- messages over sockets that keep their boundaries (messages.c) -------------------------------------- */

/* A socket of this name in the directory; -1 with errno. ENAMETOOLONG: no socket can have that path. */
int mps_connect(const char *directory, const char *name);
int mps_listen(const char *directory, const char *name, mode_t mode);
/* False: the other side is gone. */
bool message_send(int socket, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends it together with a descriptor. */
bool message_send_file(int socket, int file, const char *text);
/* The length of the text; 0: the other side is gone. `file` may be NULL; -1 in it: none came with it. */
size_t message_receive(int socket, char text[MESSAGE_SIZE], int *file);

/* ---- amounts of memory (messages.c) --------------------------------------------------------------------- */

/* The next `ID=LIMIT` of a list that commas separate; false: there is none. An invalid one is passed over. */
bool next_limit(const char **list, char id[TEXT_SIZE], uint64_t *bytes);
/* A whole number with G, M or K; 0: it is none. */
uint64_t parse_memory(const char *text);

/* ---- devices as CUDA numbers them (devices.c) ----------------------------------------------------------- */

struct nvml_device;

/* A GPU that is not in MIG mode, or a MIG device. */
struct cuda_device {
    struct nvml_device *nvml;
    char uuid[TEXT_SIZE], name[TEXT_SIZE];
    unsigned multiprocessors, compute_mode, capability_major, capability_minor;
    uint64_t memory_bytes;
};

struct cuda_devices {
    unsigned count;
    struct cuda_device device[MAX_DEVICES];
};

/* Starts a session of NVML with this library. False: there is no driver. */
bool devices_open(void *library);
/*
 * The devices that CUDA_VISIBLE_DEVICES selects, in its order: indices, or UUIDs and beginnings of them, up to the
 * first that is none; without the variable, all of them.
 */
void devices_list(struct cuda_devices *devices);
/* The place of the device with this UUID; -1: none has it. */
int device_find(const struct cuda_devices *devices, const char *uuid);
/* A context on the device, for this process. */
enum cuda_result device_open_context(const struct cuda_device *device);
void device_close_context(const struct cuda_device *device);
/* Whether the fault rules let this part of MPS do this (nvml-simulator.md §11); waits as long as they say. */
bool devices_allow(const char *command);
/* CUDA's number of the driver's version, and the driver's own. */
int devices_cuda_version(void);
void devices_driver_version(char version[TEXT_SIZE]);
