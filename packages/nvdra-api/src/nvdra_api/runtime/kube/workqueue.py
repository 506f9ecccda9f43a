"""Work by key: at once, one at a time per key, several keys together, again after a failure.

A key is worked on because something about it changed, not for what changed: who adds it ten times
while it is being worked on gets it worked on once more.
Source: spec/compute-domain.md §14.1 (KW-5), §15.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.process import waiting
from nvdra_api.types.errors import DriverError

K = TypeVar("K", bound=str)

FAILED: Final = Backoff(first_s=0.25, ceiling_s=30)
TOGETHER: Final = 16
"""Keys at a time. Each has a connection of its own to the API server at most, and the handshakes of
more cost both sides more than they gain."""

DRAIN_S: Final = 4.0
"""How long leaving waits for the work in hand before it cancels it; less than what lies between the
renew deadline and the end of a lease that was lost."""


@dataclass(slots=True, eq=False)
class _Key:
    """One key while there is something to do about it, now or later.

    Attributes:
        stirred: Something changed since the work on it last began.
        failures: In a row.
        is_working: Not waiting.
        task: The one that works.
    """

    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    is_working: bool = False
    task: "asyncio.Task[None] | None" = None


class WorkQueue(Generic[K]):
    """Keys to be worked on; `running` does it.

    The work returns None when all is done until somebody adds the key again, or in how many seconds
    to look again at the latest. A `DriverError` is tried again after a delay that doubles; a change
    of the key cuts it short, though never below the first delay. Any other exception ends the
    block.
    """

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        *,
        observe_failure: Callable[[K, DriverError, float], None],
        backoff: Backoff = FAILED,
        together: int = TOGETHER,
        calm_s: float = 0.0,
    ) -> None:
        """Prepare to work.

        Args:
            work: Brings one key up to date.
            observe_failure: Told of each failure, with the seconds until the next try.
            backoff: Between tries of a key that fails.
            together: Most keys that are worked on at the same time.
            calm_s: Least time between two looks at one key: what changes meanwhile is one look.
        """
        self._work = work
        self._observe_failure = observe_failure
        self._backoff = backoff
        self._calm_s = calm_s
        self._drain_s = DRAIN_S
        self._turns = asyncio.Semaphore(together)
        self._keys: dict[K, _Key] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def depth(self) -> int:
        """Keys with something to do now: being worked on, or next."""
        return sum(key.is_working or key.stirred.is_set() for key in self._keys.values())

    @property
    def failing(self) -> int:
        """Keys whose last try failed."""
        return sum(key.failures > 0 for key in self._keys.values())

    def add(self, key: K) -> None:
        """Something about the key changed: work on it, now or as soon as the present work ends."""
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _Key()
            self._start(key, known)
        known.stirred.set()

    def drop(self) -> None:
        """Finish nothing: leaving the block cancels what is in hand, for somebody else has it."""
        self._drain_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["WorkQueue[K]"]:
        """Work until the block is left; what is in hand then is finished, as far as 4 s allow."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for key, known in self._keys.items():
                self._start(key, known)
            try:
                yield self
            finally:
                self._group = None
                await self._drain()

    def _start(self, key: K, known: _Key) -> None:
        """A task of the key's own, which ends when there is nothing left to do about it."""
        if self._group is not None:
            known.task = self._group.create_task(self._keep(key, known), name=f"work {key}")

    async def _keep(self, key: K, known: _Key) -> None:
        try:
            while True:
                known.stirred.clear()
                again_s = await self._once(key, known)
                if self._group is None:
                    return
                pause_s = self._calm_s
                if again_s is not None and known.failures:
                    pause_s = min(again_s, self._backoff.first_s)
                if pause_s:
                    await asyncio.sleep(pause_s)
                if known.stirred.is_set():
                    continue
                if again_s is None:
                    return
                await waiting.within(known.stirred, max(0.0, again_s - pause_s))
        finally:
            if self._keys.get(key) is known:
                del self._keys[key]

    async def _once(self, key: K, known: _Key) -> float | None:
        async with self._turns:
            known.is_working = True
            try:
                again_s = await self._work(key)
            except DriverError as error:
                known.failures += 1
                chance = random.random()  # noqa: S311 - spreads load
                delay = self._backoff.delay(known.failures, chance)
                self._observe_failure(key, error, delay)
                return delay
            finally:
                known.is_working = False
        known.failures = 0
        return again_s

    async def _drain(self) -> None:
        """Idle tasks end at once; those at work get a while to finish what they began."""
        known = [each for each in self._keys.values() if each.task is not None]
        at_work = {each.task for each in known if each.task and each.is_working}
        for each in known:
            if each.task and not each.is_working:
                each.task.cancel()
        if at_work:
            _, late = await asyncio.wait(at_work, timeout=self._drain_s)
            for task in late:
                task.cancel()
