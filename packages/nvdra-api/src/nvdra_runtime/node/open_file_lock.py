# SPDX-License-Identifier: Apache-2.0
"""A lock on a file, or on one byte of it, that belongs to its open file, not to a process.

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


def acquire(descriptor: int, byte: int | None = None, *, is_shared: bool = False) -> bool:
    """Take the lock, without waiting. Returns False if another open file has it.

    Args:
        descriptor: The open file; for a shared lock it must be readable, else writable.
        byte: Which byte of the file is locked, which need not exist; None for all of them.
        is_shared: Whether others may have a shared lock, too.

    Raises:
        OSError: The file system does not know such locks.
    """
    kind = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _pack(kind, byte))
    except (BlockingIOError, PermissionError):
        return False
    return True


def release(descriptor: int, byte: int | None = None) -> None:
    """Release the lock if it is held.

    Raises:
        OSError: The file system does not know such locks.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _pack(fcntl.F_UNLCK, byte))


def is_held(descriptor: int, byte: int | None = None) -> bool:
    """Whether another open file has the lock, shared or not.

    Raises:
        OSError: The file system does not know such locks.
    """
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _pack(fcntl.F_WRLCK, byte))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _pack(kind: int, byte: int | None) -> bytes:
    start, length = (0, 0) if byte is None else (byte, 1)
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
