"""Fair locks, one per key, for the tasks of one event loop.

`node.instance_lock.InstanceLock` excludes other processes. Source: docs/design.md, "No node-wide
lock".
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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

    @asynccontextmanager
    async def hold(
        self, keys: Iterable[K], *, holder: str, deadline: float
    ) -> AsyncGenerator[LockWait, None]:
        """Hold the locks of all keys while the block runs.

        Args:
            keys: In any order; duplicates count once.
            holder: Our name for others who wait: a claim, as in log lines.
            deadline: Monotonic seconds of the loop's clock. Free locks are acquired even if it has
                passed.

        Raises:
            RetryableError: `LockTimeout`. The error names the key and its holder.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        first_holder: str | None = None
        acquired: list[K] = []
        try:
            for key in sorted(set(keys)):
                other = await self._acquire(key, holder, started, deadline)
                acquired.append(key)
                first_holder = first_holder or other
            seconds = 0.0 if first_holder is None else loop.time() - started
            yield LockWait(seconds, first_holder)
        finally:
            for key in reversed(acquired):
                self._release(key)

    async def _acquire(self, key: K, holder: str, started: float, deadline: float) -> str | None:
        """Acquire one lock. Returns its former holder, or None if it was free."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = _HeldLock(holder)
            return None
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
            self._release(key)
        elif (held := self._held.get(key)) is not None and waiter in held.queue:
            held.queue.remove(waiter)

    def _release(self, key: K) -> None:
        held = self._held[key]
        while held.queue:
            next_waiter = held.queue.popleft()
            if not next_waiter.acquired.done():
                held.holder = next_waiter.holder
                next_waiter.acquired.set_result(None)
                return
        del self._held[key]


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
