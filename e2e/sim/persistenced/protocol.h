// SPDX-License-Identifier: Apache-2.0

/*
 * How nvidia-persistenced is asked: ONC RPC (RFC 5531) over a Unix socket.
 *
 * Program 35006: version 1 sets (1) and asks for (2) the persistence mode of a GPU, version 2 sets it without the NUMA
 * state (1), and that state alone (2). Source: NVIDIA/nvidia-persistenced, nvpd_rpc.h, nvpd_rpc_xdr.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

#define PERSISTENCED_SOCKET "/var/run/nvidia-persistenced/socket"

enum { PD_SET_MODE = 1, PD_GET_MODE = 2 };
enum { PD_MAX_WORDS = 128 }; /* of a message; credentials are 400 bytes at most */

/* nvpd_rpc.h, enum NvPdStatus */
enum pd_status {
    PD_SUCCESS = 0,
    PD_NOT_FOUND = 2,
    PD_DRIVER = 3,
    PD_INVALID_ARGUMENT = 5,
};

/* RFC 5531, enum accept_stat */
enum pd_accepted { PD_ACCEPTED, PD_NO_PROGRAM, PD_OTHER_VERSION, PD_NO_PROCEDURE, PD_GARBAGE };

struct pd_gpu {
    uint32_t domain, bus, slot;
};

struct pd_call {
    uint32_t xid, program, version, procedure;
    struct pd_gpu gpu;
    uint32_t mode;
};

/* A record with its mark, of one fragment. False: the peer is gone, or what it sends is none. */
bool pd_read(int file, uint32_t words[PD_MAX_WORDS], size_t *count);
bool pd_write(int file, const uint32_t *words, size_t count);

/* The call in a message, as far as it can be read; what is wrong with it. */
enum pd_accepted pd_parse(const uint32_t *words, size_t count, struct pd_call *call);

/*
 * Ask the daemon at PERSISTENCED_SOCKET, or where NVDRA_SIM_PERSISTENCED says, about a GPU. False: there is none that
 * answers. `mode` is what is set, or what is found.
 */
bool pd_ask(unsigned procedure, const struct pd_gpu *gpu, uint32_t *mode, enum pd_status *status);
/* The path of the socket. */
const char *pd_socket(void);
/* A short address of a socket with this path, which holds while the descriptor of its directory is open; -1: none. */
int pd_address(const char *path, struct sockaddr_un *address);
