# SPDX-License-Identifier: Apache-2.0
"""Who has NVML open on this node, so that a GPU can be taken from the driver.

The driver waits without end for the last user of a GPU that is unbound from it (`nv_pci_remove` in
open-gpu-kernel-modules). So all programs of nvdra on a node share a lock while they have NVML open,
and the plugin that unbinds a GPU has it alone. The lock is on two bytes of a file in the GPU
plugin's directory, which exists on nodes with passthrough only: the first is for sessions, the
second says that a session is in the way. The kernel releases both when a process ends.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from nvdra_api.errors import Reason, RetryableError

from nvdra_runtime.node import open_file_lock

FILE_NAME: Final = "nvml.lock"

_SESSIONS, _WANTED = 0, 1
_POLL_S: Final = 0.02
"""Between two attempts; the kernel does not notify of a free lock. One takes 5 µs."""


def create(gpu_plugin_dir: Path) -> None:
    """Create the file, so that sessions are counted from now on.

    Raises:
        OSError: It cannot be created.
    """
    os.close(os.open(_path(gpu_plugin_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


class SessionHold:
    """The share of one program in the lock; held while it has NVML open.

    On a node without the file every program gets one.
    """

    def __init__(self, gpu_plugin_dir: Path) -> None:
        """Create it without taking it."""
        self._path = _path(gpu_plugin_dir)
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take it, without waiting. Returns False if a GPU is being taken from the driver.

        Raises:
            OSError: The file cannot be opened.
        """
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        if open_file_lock.is_held(descriptor, _WANTED) or not open_file_lock.acquire(
            descriptor, _SESSIONS, is_shared=True
        ):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def acquire_within(self, timeout_s: float) -> bool:
        """Take it as soon as it is free, blocking the thread. Returns False after the timeout.

        Raises:
            OSError: The file cannot be opened.
        """
        until = time.monotonic() + timeout_s
        while not self.acquire():
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)  # noqa: TID251 - the kernel does not notify of a free lock
        return True

    def is_in_the_way(self) -> bool:
        """Whether a GPU is to be taken from the driver: close NVML, and release this."""
        return self._descriptor is not None and open_file_lock.is_held(self._descriptor, _WANTED)

    def release(self) -> None:
        """Give it back, if it is held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@asynccontextmanager
async def exclusive(gpu_plugin_dir: Path, deadline: float) -> AsyncIterator[None]:
    """Have the lock alone for the block: nothing of nvdra has NVML open on this node.

    The caller has released its own share. Programs that keep one look for this every second.

    Args:
        gpu_plugin_dir: The GPU plugin's directory.
        deadline: Until when to wait, by the loop's clock.

    Raises:
        RetryableError: `DeadlineExceeded`: a session is still open.
        OSError: The file cannot be opened.
    """
    loop = asyncio.get_running_loop()
    descriptor = os.open(_path(gpu_plugin_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for byte in (_WANTED, _SESSIONS):
            while not open_file_lock.acquire(descriptor, byte):
                if loop.time() >= deadline:
                    raise RetryableError(
                        Reason.DEADLINE_EXCEEDED,
                        "another program of nvdra on this node still has NVML open",
                        "this is tried again; if it lasts, look whether a call hangs in NVML: the "
                        "command status of the node's plugins",
                    )
                await asyncio.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _path(gpu_plugin_dir: Path) -> Path:
    return gpu_plugin_dir / FILE_NAME
