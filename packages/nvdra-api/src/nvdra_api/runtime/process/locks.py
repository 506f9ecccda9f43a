"""Fair locks, one per key, for tasks of one loop. Another process is excluded by `node.files`.

Source: design.md, "No node-wide lock"; style.md §13.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from nvdra_api.types.errors import Reason, RetryableError

K = TypeVar("K", bound=str)


class Waited(NamedTuple):
    """How it went: a caller that did not wait needs no span for it.

    Attributes:
        seconds: Time until all keys were held; 0.0 when all were free.
        holder: Who had the first key that was not free; None when all were.
    """

    seconds: float
    holder: str | None


@dataclass(slots=True, eq=False)
class _Waiter:
    holder: str
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Held:
    holder: str
    queue: deque[_Waiter] = field(default_factory=deque)


class Locks(Generic[K]):
    """First come, first served, per key; without polling and without a lock for all.

    Several keys are taken in sorted order, so two claims that want the same ones cannot block each
    other. Free keys cost nothing: there is an entry only while a key is held.
    """

    def __init__(self) -> None:
        self._held: dict[K, _Held] = {}

    @asynccontextmanager
    async def hold(
        self, keys: Iterable[K], *, holder: str, deadline: float
    ) -> AsyncGenerator[Waited, None]:
        """Hold every key for the block.

        Args:
            keys: In any order; twice the same counts once.
            holder: Who we are, for those who wait: a claim, as in log lines.
            deadline: By the loop's clock, in monotonic seconds. What is free is taken even when it
                has passed.

        Raises:
            RetryableError: `LockTimeout`, naming the key and its holder.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        met: str | None = None
        taken: list[K] = []
        try:
            for key in sorted(set(keys)):
                other = await self._take(key, holder, began, deadline)
                taken.append(key)
                met = met or other
            yield Waited(0.0 if met is None else loop.time() - began, met)
        finally:
            for key in reversed(taken):
                self._release(key)

    async def _take(self, key: K, holder: str, began: float, deadline: float) -> str | None:
        """Take one key; returns who had it, None when it was free."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = _Held(holder)
            return None
        other = held.holder
        waiter = _Waiter(holder, asyncio.get_running_loop().create_future())
        held.queue.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter.turn
        except TimeoutError as error:
            self._leave(key, waiter)
            raise _timed_out(key, self._held.get(key), holder, began) from error
        except asyncio.CancelledError:
            self._leave(key, waiter)
            raise
        return other

    def _leave(self, key: K, waiter: _Waiter) -> None:
        """Stop waiting; a key that was handed over in the same moment goes to the next."""
        if waiter.turn.done() and not waiter.turn.cancelled():
            self._release(key)
        elif (held := self._held.get(key)) is not None and waiter in held.queue:
            held.queue.remove(waiter)

    def _release(self, key: K) -> None:
        held = self._held[key]
        while held.queue:
            following = held.queue.popleft()
            if not following.turn.done():
                held.holder = following.holder
                following.turn.set_result(None)
                return
        del self._held[key]


def _timed_out(key: str, held: _Held | None, holder: str, began: float) -> RetryableError:
    waited = asyncio.get_running_loop().time() - began
    other = held.holder if held is not None else "a claim that has let go just now"
    return RetryableError(
        Reason.LOCK_TIMEOUT,
        f"{key} is in use by {other}, waited {waited:.1f} s for it",
        f"the kubelet tries again; if this lasts, the trace of {other} shows what it waits for",
        key=key,
        holder=other,
        waiter=holder,
    )
