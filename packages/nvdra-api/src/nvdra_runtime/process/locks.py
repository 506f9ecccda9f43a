# SPDX-License-Identifier: Apache-2.0
"""Fair locks, one per key, for the tasks of one event loop.

`node.instance_lock.InstanceLock` excludes other processes. Source: docs/design.md, "No node-wide
lock".
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

from nvdra_api.errors import Reason, RetryableError

K = TypeVar("K", bound=str)


class LockWait(NamedTuple):
    """How long a caller waited for its locks.

    Attributes:
        seconds: Time until all keys were locked; 0.0 if all were free.
        holder: Holder of the first key that was not free; None if all were free.
    """

    seconds: float
    holder: str | None


@dataclass(slots=True, eq=False)
class _Waiter:
    holder: str
    acquired: asyncio.Future[None]


@dataclass(slots=True)
class _HeldLock:
    holder: str
    queue: deque[_Waiter] = field(default_factory=deque)


class KeyedLocks(Generic[K]):
    """Locks that are acquired in the order of the requests, per key and without polling.

    Several keys are acquired in sorted order, so that two claims cannot block each other. Only
    locked keys use memory.
    """

    def __init__(self) -> None:
        self._held: dict[K, _HeldLock] = {}

    def hold(self, keys: Iterable[K], *, holder: str, deadline: float) -> "LockHold[K]":
        """Return a context manager that holds the locks of all keys while its block runs.

        Args:
            keys: In any order; duplicates count once.
            holder: Our name for others who wait: a claim, as in log lines.
            deadline: Monotonic seconds of the loop's clock. Free locks are acquired even if it has
                passed.
        """
        return LockHold(self, keys, holder, deadline)

    def try_acquire(self, key: K, holder: str) -> bool:
        """Acquire one lock if it is free. For `LockHold`."""
        if key in self._held:
            return False
        self._held[key] = _HeldLock(holder)
        return True

    async def acquire(self, key: K, holder: str, started: float, deadline: float) -> str | None:
        """Acquire one lock. Returns its former holder, or None if it was free. For `LockHold`."""
        if self.try_acquire(key, holder):
            return None
        held = self._held[key]
        other = held.holder
        waiter = _Waiter(holder, asyncio.get_running_loop().create_future())
        held.queue.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter.acquired
        except TimeoutError as error:
            self._stop_waiting(key, waiter)
            raise _timeout_error(key, self._held.get(key), holder, started) from error
        except asyncio.CancelledError:
            self._stop_waiting(key, waiter)
            raise
        return other

    def _stop_waiting(self, key: K, waiter: _Waiter) -> None:
        """Stop waiting. A lock that was handed over meanwhile goes to the next waiter."""
        if waiter.acquired.done() and not waiter.acquired.cancelled():
            self.release(key)
        elif (held := self._held.get(key)) is not None and waiter in held.queue:
            held.queue.remove(waiter)

    def release(self, key: K) -> None:
        """Hand a lock to the hold that has waited longest. For `LockHold`."""
        held = self._held[key]
        while held.queue:
            next_waiter = held.queue.popleft()
            if not next_waiter.acquired.done():
                held.holder = next_waiter.holder
                next_waiter.acquired.set_result(None)
                return
        del self._held[key]


class LockHold(Generic[K]):
    """The locks of one caller, from `KeyedLocks.hold`. It is used once.

    A class rather than a generator, because every prepare and unprepare enters several.
    """

    __slots__ = ("_acquired", "_deadline", "_holder", "_keys", "_locks")

    def __init__(
        self, locks: KeyedLocks[K], keys: Iterable[K], holder: str, deadline: float
    ) -> None:
        self._locks = locks
        self._keys = sorted(set(keys))
        self._holder = holder
        self._deadline = deadline
        self._acquired: list[K] = []

    async def __aenter__(self) -> LockWait:
        return await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Acquire all locks, or as many of the first ones as are free.

        Returns:
            Whether all are held. Otherwise `acquire` waits for the others.
        """
        missing = self._keys[len(self._acquired) :]
        for key in missing:
            if not self._locks.try_acquire(key, self._holder):
                return False
            self._acquired.append(key)
        return True

    async def acquire(self) -> LockWait:
        """Acquire all locks that are not held yet, or none.

        Raises:
            RetryableError: `LockTimeout`. The error names the key and its holder.
        """
        if self.try_acquire():
            return LockWait(0.0, None)
        loop = asyncio.get_running_loop()
        started = loop.time()
        first_holder: str | None = None
        try:
            for key in self._keys[len(self._acquired) :]:
                other = await self._locks.acquire(key, self._holder, started, self._deadline)
                self._acquired.append(key)
                first_holder = first_holder or other
        except BaseException:
            self.release()
            raise
        return LockWait(loop.time() - started, first_holder)

    def release(self) -> None:
        """Release all locks that are held."""
        while self._acquired:
            self._locks.release(self._acquired.pop())


def _timeout_error(key: str, held: _HeldLock | None, holder: str, started: float) -> RetryableError:
    waited = asyncio.get_running_loop().time() - started
    other = held.holder if held is not None else "a claim that has just released it"
    return RetryableError(
        Reason.LOCK_TIMEOUT,
        f"{key} is in use by another claim; waited {waited:.1f} s for it",
        "the kubelet retries; if this lasts, the trace of the claim that the plugin's log names "
        "shows what it waits for",
        operator_message=f"{key} is in use by {other}; waited {waited:.1f} s for it",
        key=key,
        holder=other,
        waiter=holder,
    )
