// SPDX-License-Identifier: Apache-2.0

/* The parts of nvidia-cuda-mps-server. One thread answers the control daemon and all clients. */
#pragma once

#include <poll.h>

#include "log.h"
#include "mps.h"

enum { CONTROL = 3, LOG = 4 }; /* descriptors that the control daemon gives */

/* ---- limits for clients that come (limits.c) ------------------------------------------------------------ */

/* What a device's clients may have. */
extern double active_threads_percentage;
extern uint64_t pinned_limits[MAX_DEVICES]; /* in bytes, by device; 0: none */

/* Takes over a list of `DEVICE=LIMIT`; a device is an index or a UUID. Those that it does not have are passed over. */
void limits_take(const char *list);

/* ---- reports (reports.c) ----------------------------------------------------------------------------------- */

extern struct cuda_devices devices;

/* Tells the control daemon what a client does. */
void tell_that_left(unsigned number);
void tell_device(unsigned number, unsigned device);

/* ---- clients (clients.c) --------------------------------------------------------------------------------- */

enum { MAX_CLIENTS = 256 };

/* Takes a client in that the control daemon hands over with this number. */
void client_welcome(unsigned number, int pid, int socket);
/* Ends what a client does on the GPUs; it learns so at its next request. */
void client_terminate(unsigned number);
/* Adds what to wait for; how many. */
unsigned clients_wait(struct pollfd polls[MAX_CLIENTS]);
/* Answers those who have asked. */
void clients_react(const struct pollfd *polls, unsigned count);
