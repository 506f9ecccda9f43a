# SPDX-License-Identifier: Apache-2.0
"""Lets a prepare wait inside the kubelet's call, for another claim's devices or for the API server.

A prepare that waits polls nothing and holds no lock of a GPU: `PreparedClaims.wait_removed` returns
when the claim that holds the devices is unprepared.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.process.locks import KeyedLocks

NOTIFY_AFTER_S = 1.0
"""How long a claim waits for a device before the user is notified. Most pods that are terminating
are gone by then."""

NotifyWaiting = Callable[[DriverError], object]
"""Reports to the user why a claim waits."""

WaitRemoved = Callable[[ClaimUID], Awaitable[None]]
"""Returns once the claim is not prepared any more: `PreparedClaims.wait_removed`."""


class DeviceWaitQueue:
    """The prepares that wait.

    Attributes:
        blocking_claims: Claims that hold a device which another claim waits for, in the order in
            which they were found. `StaleClaimCleanup` checks whether they still exist.
        wait_removed: Waits until a claim is not prepared any more.
        device_locks: One queue of waiting claims per device key.
    """

    def __init__(self, wait_removed: WaitRemoved) -> None:
        self.blocking_claims: asyncio.Queue[ClaimUID] = asyncio.Queue()
        self.wait_removed = wait_removed
        self.device_locks: KeyedLocks[str] = KeyedLocks()
        self._waits: dict[ClaimUID, asyncio.Timeout] = {}
        self._cancelled: set[ClaimUID] = set()
        self._ends: dict[ClaimUID, DriverError] = {}
        self._is_closing = False

    def join(self, ref: ClaimRef, deadline: float, notify: NotifyWaiting) -> "DeviceWait":
        """The wait of one claim, as a context manager."""
        return DeviceWait(self, ref, deadline, notify)

    async def pause(self, ref: ClaimRef, error: DriverError, seconds: float) -> None:
        """Sleep before the next attempt.

        Args:
            ref: The claim.
            error: Why the last attempt failed.
            seconds: How long to sleep.

        Raises:
            DriverError: `error`, if the wait is cancelled.
        """
        async with self.wait_until(ref, error, asyncio.get_running_loop().time() + seconds + 1):
            await asyncio.sleep(seconds)

    def cancel(self, uid: ClaimUID) -> None:
        """End the waits of a claim, because it is to be unprepared.

        Each wait raises the error that it was started with, and so do new ones until `resume`.
        """
        self._cancelled.add(uid)
        self._end(uid)

    def fail(self, uid: ClaimUID, error: DriverError) -> None:
        """End the present wait of a claim with this error, because it waits for nothing any more.

        A claim that does not wait is not concerned.
        """
        if self._end(uid):
            self._ends[uid] = error

    def resume(self, uid: ClaimUID) -> None:
        """Let the claim wait again."""
        self._cancelled.discard(uid)

    def close(self) -> None:
        """End all waits, and those that come later, because the process is stopping."""
        self._is_closing = True
        for uid in tuple(self._waits):
            self.cancel(uid)

    @asynccontextmanager
    async def wait_until(
        self, ref: ClaimRef, error: DriverError, deadline: float
    ) -> AsyncGenerator[None]:
        """Raise `error` in the block at the deadline, or when `cancel` or `close` is called.

        If `fail` is called, its error is raised instead.
        """
        is_cancelled = self._is_closing or ref.uid in self._cancelled
        try:
            async with asyncio.timeout_at(0 if is_cancelled else deadline) as wait:
                self._waits[ref.uid] = wait
                try:
                    yield
                finally:
                    del self._waits[ref.uid]
        except TimeoutError:
            raise self._ends.get(ref.uid, error) from None
        finally:
            self._ends.pop(ref.uid, None)

    def _end(self, uid: ClaimUID) -> bool:
        wait = self._waits.get(uid)
        if wait is None or wait.expired():
            return False
        wait.reschedule(asyncio.get_running_loop().time())
        return True


class DeviceWait:
    """The wait of one claim for devices; created by `DeviceWaitQueue.join`.

    Claims that wait for the same device get it in the order in which they began to wait. A claim
    whose devices are free does not wait, and is not delayed by those that do.
    """

    def __init__(
        self, queue: DeviceWaitQueue, ref: ClaimRef, deadline: float, notify: NotifyWaiting
    ) -> None:
        self.ref = ref
        self.deadline = deadline
        self._queue = queue
        self._notify: NotifyWaiting | None = notify
        self._locks = AsyncExitStack()
        self._is_queued = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._locks.aclose()

    async def wait_released(self, error: DeviceInUseError) -> None:
        """Wait until it is this claim's turn and the holder named by `error` is unprepared.

        Raises:
            DeviceInUseError: `error`, at the deadline or if the wait is cancelled.
        """
        holder = error.holder.uid
        self._queue.blocking_claims.put_nowait(holder)
        timer = asyncio.get_running_loop().call_later(NOTIFY_AFTER_S, self._notify_once, error)
        try:
            async with self._queue.wait_until(self.ref, error, self.deadline):
                await self._lock_devices(error)
                await self._queue.wait_removed(holder)
        finally:
            timer.cancel()

    async def _lock_devices(self, error: DeviceInUseError) -> None:
        if not self._is_queued:
            # The wait ends at its own deadline, with an error that names the holder.
            deadline = self.deadline + 1
            locks = self._queue.device_locks.hold(
                error.device_keys, holder=str(self.ref), deadline=deadline
            )
            await self._locks.enter_async_context(locks)
            self._is_queued = True

    def _notify_once(self, error: DeviceInUseError) -> None:
        if self._notify is not None:
            self._notify(error)
            self._notify = None
