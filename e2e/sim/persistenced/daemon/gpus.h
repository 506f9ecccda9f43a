// SPDX-License-Identifier: Apache-2.0

/* The GPUs that the daemon keeps open. */
#pragma once

#include "protocol.h"

/* Finds the state file and the GPUs that the driver has now; later ones the daemon does not know. False: there is none. */
bool gpus_find(bool cannot_reopen);
/* The status that the real daemon answers with. */
enum pd_status gpus_set(const struct pd_gpu *gpu, uint32_t mode);
enum pd_status gpus_get(const struct pd_gpu *gpu, uint32_t *mode);
/* Opens all of them. One that cannot be opened stays closed. */
void gpus_open_all(void);
