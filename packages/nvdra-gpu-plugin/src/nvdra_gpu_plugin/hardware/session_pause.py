# SPDX-License-Identifier: Apache-2.0
"""Closes NVML on the whole node while a GPU is taken from the driver, or given back.

NVML cannot close one GPU, and the driver waits without end for the last user of a GPU that is
unbound from it. So this process, an instance that stands by and the ComputeDomain plugin close
their sessions. What is known of the GPUs stays: containers and the published slices notice nothing,
and other prepares wait until NVML is open again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.node import nvml_lock

from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor

_OTHERS_S: Final = 10.0
"""How long the sessions of other programs are waited for, which look every second."""


class SessionPause:
    """The sessions of one node, from the view of what changes a GPU's driver."""

    def __init__(self, monitor: DeviceMonitor, plugin_dir: Path) -> None:
        """Create it without any effect.

        Args:
            monitor: Holds the session of this process.
            plugin_dir: Where the lock of the node's sessions is.
        """
        self._monitor = monitor
        self._plugin_dir = plugin_dir
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def paused(self, deadline: float) -> AsyncIterator[None]:
        """Have NVML closed for the block, which ends within seconds; then it is opened again.

        Args:
            deadline: Until when to wait for sessions, by the loop's clock.

        Raises:
            RetryableError: `DeadlineExceeded`: a session cannot be closed.
        """
        until = min(deadline, asyncio.get_running_loop().time() + _OTHERS_S)
        async with self._lock:
            was_released = self._monitor.state.is_released
            try:
                if not await self._monitor.release():
                    raise RetryableError(
                        Reason.DEADLINE_EXCEEDED,
                        "a call hangs in NVML, so that it cannot be closed and no GPU can be taken "
                        "from the driver",
                        "look for Xid messages in the node's kernel log; restart the plugin",
                    )
                async with nvml_lock.exclusive(self._plugin_dir, until):
                    yield
            finally:
                if not was_released:
                    await self._monitor.resume()

    async def renew(self) -> None:
        """Close NVML and open it again, so that it lists a GPU that it does not list now."""
        async with self._lock:
            if not self._monitor.state.is_released:
                await self._monitor.release()
                await self._monitor.resume()

    def reopen(self) -> None:
        """Have NVML opened again, without waiting: the driver has another GPU."""
        self._monitor.wake()
