# SPDX-License-Identifier: Apache-2.0
"""A lock on a whole file that belongs to its open file, not to a process.

The kernel releases it when the last descriptor of the open file is closed, so programs that inherit
one hold it, too, however they end; a reboot leaves none. Others can ask for it without taking it,
also by another mount. Source: fcntl(2), "Open file description locks".
"""

import fcntl
import os
import struct
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` of Linux on 64-bit machines: type, whence, start, length, process."""


def acquire(descriptor: int) -> bool:
    """Take the lock, without waiting. Returns False if another open file has it.

    Raises:
        OSError: The file system does not know such locks.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _pack(fcntl.F_WRLCK))
    except (BlockingIOError, PermissionError):
        return False
    return True


def release(descriptor: int) -> None:
    """Release the lock if it is held.

    Raises:
        OSError: The file system does not know such locks.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _pack(fcntl.F_UNLCK))


def is_held(descriptor: int) -> bool:
    """Whether another open file has the lock.

    Raises:
        OSError: The file system does not know such locks.
    """
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _pack(fcntl.F_WRLCK))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _pack(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
