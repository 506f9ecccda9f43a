// SPDX-License-Identifier: Apache-2.0

/* The parts of the simulated libcuda.so.1. */
#pragma once

#include "mps.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- devices (libcuda.c) ----------------------------------------------------------------------------------- */

/* What this process has found at its cuInit. */
extern struct cuda_devices devices;
bool is_initialized(void);

/* ---- as a client of MPS (mps_client.c) ---------------------------------------------------------------------- */

/* Connects to the control daemon, and waits for its server. NOT_FOUND: there is no daemon, so that this process
   computes by itself. Keeps those of the devices that the server has. */
enum cuda_result client_connect(struct cuda_devices *known);
bool client_is_connected(void);
/* Asks the server; the memory of the device that this process can still have, and could have at most. */
enum cuda_result client_ask(
    const char *verb, unsigned device, uint64_t bytes, uint64_t *free_bytes, uint64_t *total_bytes);
/* The part of the multiprocessors that this process gets. */
double client_percentage(void);
