// SPDX-License-Identifier: Apache-2.0

/*
 * Locks on bytes behind the state file, which tell what living processes do (nvml-simulator.md §10.7).
 *
 * They belong to the descriptor of the mapped file, and the kernel takes them away from a process that is killed.
 */
#include <errno.h>
#include <fcntl.h>

#include "sim.h"

static struct flock lock_of(short type, unsigned first, unsigned count)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
}

/* A descriptor without the right to write cannot exclude others; its process then waits for nobody. */
void set_lock(short type, unsigned byte)
{
    struct flock lock = lock_of(type, byte, 1);
    while (fcntl(state_file(), F_OFD_SETLKW, &lock) != 0 && errno == EINTR)
        continue;
}

bool is_locked(unsigned first, unsigned count)
{
    struct flock lock = lock_of(F_WRLCK, first, count);
    return fcntl(state_file(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}
