# SPDX-License-Identifier: Apache-2.0
"""A work queue with rate-limited retries, as in client-go: one task at a time processes a key.

A key that is added several times while it is processed is processed once more. Different keys are
processed concurrently. Source: docs/reference/compute-domain.md, "Scalability and latency" (KW-5),
"Principles of nvdra's components".
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from nvdra_api.errors import DriverError

from nvdra_runtime.kube.fair_slots import FairSlots
from nvdra_runtime.process import background_tasks, timeouts
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.backoff import Backoff

K = TypeVar("K", bound=str)

RETRY_BACKOFF: Final = Backoff(first_s=0.25, ceiling_s=30)
MAX_CONCURRENT: Final = 16
"""Keys that are processed concurrently. Each uses one connection to the API server; with more, the
TLS handshakes cost more than the concurrency gains."""

DRAIN_TIMEOUT_S: Final = 4.0
"""How long leaving waits for tasks in progress before it cancels them. It is less than the time
between the renew deadline and the expiry of a lost lease."""


def _one_group(_: str) -> str:
    """The group of all keys."""
    return ""


@dataclass(slots=True, eq=False)
class _KeyState:
    """The state of a key that is processed now or later.

    Attributes:
        dirty: Set if the key was added since its processing last started.
        failures: Number of failures in a row.
        is_processing: Whether it is processed now, not waiting.
        task: The task that processes it.
    """

    dirty: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    is_processing: bool = False
    task: "asyncio.Task[None] | None" = None


class WorkQueue(Generic[K]):
    """A queue of keys. `running` processes them.

    `reconcile` returns None, or the seconds after which to process the key again at the latest. A
    `DriverError` is retried after a delay that doubles; adding the key shortens the delay, but not
    below the first one. So is any other exception, which is logged and counted first.
    """

    def __init__(
        self,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        on_failure: Callable[[K, DriverError, float], None],
        group_of: Callable[[K], str] = _one_group,
        backoff: Backoff = RETRY_BACKOFF,
        max_concurrent: int = MAX_CONCURRENT,
        min_interval_s: float = 0.0,
    ) -> None:
        """Create a queue.

        Args:
            reconcile: Processes one key.
            on_failure: Called with each failure and the seconds until the retry.
            group_of: Returns the group of a key, such as the namespace of a user. Groups take
                turns, so that one with thousands of keys does not delay those of others.
            backoff: Delays between the retries of a key.
            max_concurrent: Maximum number of keys that are processed concurrently.
            min_interval_s: Minimum time between two runs for one key; it collects changes.
        """
        self._reconcile = reconcile
        self._on_failure = on_failure
        self._backoff = backoff
        self._min_interval_s = min_interval_s
        self._drain_timeout_s = DRAIN_TIMEOUT_S
        self._group_of = group_of
        self._slots = FairSlots(max_concurrent)
        self._keys: dict[K, _KeyState] = {}
        self._group: BackgroundTasks | None = None

    @property
    def depth(self) -> int:
        """Number of keys that are processed now or next."""
        return sum(key.is_processing or key.dirty.is_set() for key in self._keys.values())

    @property
    def failing_count(self) -> int:
        """Number of keys whose last run failed."""
        return sum(key.failures > 0 for key in self._keys.values())

    def add(self, key: K) -> None:
        """Process the key now, or once more after the run in progress."""
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _KeyState()
            self._start_task(key, known)
        known.dirty.set()

    def skip_drain(self) -> None:
        """Make leaving the block cancel the tasks in progress, because another process leads."""
        self._drain_timeout_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["WorkQueue[K]"]:
        """Process keys while the block runs. Tasks in progress get 4 s to finish at its end."""
        async with BackgroundTasks() as group:
            self._group = group
            for key, known in self._keys.items():
                self._start_task(key, known)
            try:
                yield self
            finally:
                self._group = None
                await self._drain()

    def _start_task(self, key: K, known: _KeyState) -> None:
        """Start the key's task, which ends when the key is up to date."""
        if self._group is not None:
            known.task = self._group.start_once(
                "workqueue", partial(self._process, key, known), key
            )

    async def _process(self, key: K, known: _KeyState) -> None:
        try:
            while True:
                known.dirty.clear()
                again_s = await self._process_once(key, known)
                if self._group is None:
                    return
                pause_s = self._min_interval_s
                if again_s is not None and known.failures:
                    pause_s = min(again_s, self._backoff.first_s)
                if pause_s:
                    await asyncio.sleep(pause_s)
                if known.dirty.is_set():
                    continue
                if again_s is None:
                    return
                await timeouts.wait_for_event(known.dirty, max(0.0, again_s - pause_s))
        finally:
            if self._keys.get(key) is known:
                del self._keys[key]

    async def _process_once(self, key: K, known: _KeyState) -> float | None:
        async with self._slots.hold(self._group_of(key)):
            known.is_processing = True
            try:
                with background_tasks.contain("A key cannot be processed", key=key) as contained:
                    again_s = await self._reconcile(key)
            except DriverError as error:
                delay = self._count_failure(known)
                self._on_failure(key, error, delay)
                return delay
            finally:
                known.is_processing = False
        if contained.error is not None:
            return self._count_failure(known)
        known.failures = 0
        return again_s

    def _count_failure(self, known: _KeyState) -> float:
        """Returns the seconds until the key is processed again."""
        known.failures += 1
        return self._backoff.delay(known.failures, random.random())  # noqa: S311 - spreads load

    async def _drain(self) -> None:
        """Cancel waiting tasks at once, and tasks in progress after the drain timeout."""
        states = [state for state in self._keys.values() if state.task is not None]
        in_progress = {state.task for state in states if state.task and state.is_processing}
        for state in states:
            if state.task and not state.is_processing:
                state.task.cancel()
        if in_progress:
            _, late = await asyncio.wait(in_progress, timeout=self._drain_timeout_s)
            for task in late:
                task.cancel()
