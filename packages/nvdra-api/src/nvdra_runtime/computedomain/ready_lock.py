# SPDX-License-Identifier: Apache-2.0
"""The lock that a daemon holds on a file of its domain's directory while its IMEX is READY.

The plugin of the node opens the same file by another mount. The kernel releases the lock when the
daemon's process ends, however it ends, and a reboot leaves none: unlike an entry in a clique, it
cannot outlive the daemon. The file has the UID of the daemon's pod, so the file of an earlier pod
says nothing of a daemon that does not know the lock.

The functions block: call them on a thread for files.
Source: docs/decisions/imex-daemon.md, "What does the lock in the domain's directory say?".
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from nvdra_api.ids import PodUID

from nvdra_runtime.node import open_file_lock
from nvdra_runtime.node.files import write_atomic

FILE: Final = "ready.lock"

_MAX_UID: Final = 64


def create(directory: Path, pod: PodUID) -> int:
    """Replace the file by one of this pod that is not locked; return its descriptor.

    The daemon takes and releases the lock by it (`open_file_lock`). Programs that it starts must
    not inherit it.

    Raises:
        OSError: The file system refused, or does not know such locks.
    """
    path = directory / FILE
    write_atomic(path, pod.encode())
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        open_file_lock.release(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_held(directory: int, pods: Collection[PodUID]) -> bool | None:
    """Whether a daemon holds the lock; None if the daemon of these pods has made no file.

    Args:
        directory: A descriptor of the domain's directory.
        pods: The pods that the daemon's claim is reserved for.

    Raises:
        OSError: The file cannot be read.
    """
    # O_NONBLOCK: opening a FIFO in the file's place must not block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(FILE, flags, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        if os.read(descriptor, _MAX_UID).decode(errors="replace") not in pods:
            return None
        return open_file_lock.is_held(descriptor)
    finally:
        os.close(descriptor)
