// SPDX-License-Identifier: Apache-2.0

/* Where the programs of a driver find its NVML library. */
#pragma once

/* Opens the library that belongs to this program: the one in its own driver root, else the loader's choice; or NULL. */
void *library_open(void);
