# SPDX-License-Identifier: Apache-2.0
"""Closes NVML on the whole node while a GPU is taken from the driver, or given back.

NVML cannot close one GPU, and the driver waits without end for the last user of a GPU that is
unbound from it. So this process, an instance that stands by and the ComputeDomain plugin close
their sessions. What is known of the GPUs stays: containers and the published slices notice nothing,
and other prepares wait until NVML is open again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.node import nvml_lock

from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor

_OTHERS_S: Final = 10.0
"""How long the sessions of other programs are waited for, which look every second."""
_JOIN_S: Final = 1.0
"""For how long other GPUs may still take part in a pause. Claims wait for its end."""


class SessionPause:
    """The sessions of one node, from the view of what changes a GPU's driver.

    GPUs that change it at about the same time, such as those of one claim, share a pause: opening
    NVML takes the longer, the more GPUs have to start for it.
    """

    def __init__(self, monitor: DeviceMonitor, plugin_dir: Path) -> None:
        """Create it without any effect.

        Args:
            monitor: Holds the session of this process.
            plugin_dir: Where the lock of the node's sessions is.
        """
        self._monitor = monitor
        self._plugin_dir = plugin_dir
        self._beginning = asyncio.Lock()
        self._lock = asyncio.Lock()
        self._users = 0
        self._joinable_until = 0.0
        self._end = AsyncExitStack()

    @asynccontextmanager
    async def paused(self, deadline: float) -> AsyncIterator[None]:
        """Have NVML closed for the block, which ends within seconds; then it is opened again.

        Args:
            deadline: Until when to wait for sessions, by the loop's clock.

        Raises:
            RetryableError: `DeadlineExceeded`: a session cannot be closed.
        """
        await self._begin(deadline)
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                await self._end.aclose()

    async def _begin(self, deadline: float) -> None:
        """Take part in a pause, or begin one when the one that lasts has ended."""
        now = asyncio.get_running_loop().time
        async with self._beginning, AsyncExitStack() as stack:
            if self._users and now() < self._joinable_until:
                self._users += 1
                return
            await stack.enter_async_context(self._lock)
            if not self._monitor.state.is_released:
                stack.push_async_callback(self._monitor.resume)
            if not await self._monitor.release():
                raise RetryableError(
                    Reason.DEADLINE_EXCEEDED,
                    "a call hangs in NVML, so that it cannot be closed and no GPU can be taken "
                    "from the driver",
                    "look for Xid messages in the node's kernel log; restart the plugin",
                )
            until = min(deadline, now() + _OTHERS_S)
            await stack.enter_async_context(nvml_lock.exclusive(self._plugin_dir, until))
            self._users, self._joinable_until = 1, now() + _JOIN_S
            self._end = stack.pop_all()

    async def renew(self) -> None:
        """Close NVML and open it again, so that it lists a GPU that it does not list now."""
        async with self._lock:
            if not self._monitor.state.is_released:
                await self._monitor.release()
                await self._monitor.resume()

    def reopen(self) -> None:
        """Have NVML opened again, without waiting: the driver has another GPU."""
        self._monitor.wake()
