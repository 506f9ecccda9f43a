# SPDX-License-Identifier: Apache-2.0
"""Run one operation per key at a time. A call for an operation that already runs joins it.

An operation belongs to its key, not to its caller. If a caller stops waiting, the operation
continues, and the next call for the same key waits for the same operation.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from nvdra_api.errors import Reason, RetryableError

from nvdra_runtime.process.background_tasks import BackgroundTasks

K = TypeVar("K", bound=str)
T = TypeVar("T")

SHUTDOWN_TIMEOUT_S = 5.0
"""How long `SingleFlight` waits for running operations at its end before it cancels them."""


class Operation(Generic[T]):
    """One operation of a key, running or queued.

    Attributes:
        kind: What it does, for example `prepare`.
    """

    def __init__(self, key: str, kind: str, coroutine: Coroutine[Any, Any, T]) -> None:
        self.kind = kind
        self._key = key
        self._coroutine = coroutine
        self._result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self, deadline: float) -> T:
        """Wait for the result. The operation continues if the caller stops waiting.

        Args:
            deadline: When to stop waiting, in monotonic seconds of the loop's clock.

        Raises:
            RetryableError: `DeadlineExceeded`: the deadline passed, or the process is stopping.
            Exception: The exception that the operation raised.
        """
        if not self._result.done():
            await self._wait_until_done(deadline)
        if not self._result.done():
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{self.kind} of {self._key} is not done yet",
                "it continues, and the next call waits for the same operation",
                key=self._key,
            )
        if self._result.cancelled():
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{self.kind} of {self._key} was interrupted: this process is stopping",
                "the next call starts it again",
                key=self._key,
            )
        return self._result.result()

    async def run(self) -> None:
        """Run the operation. Its exception is raised in the callers that wait for it."""
        try:
            result = await self._coroutine
        except Exception as error:  # noqa: BLE001 - raised again in every caller that waits
            self._result.set_exception(error)
            self._result.exception()  # marks it as retrieved: every caller may have left
        else:
            self._result.set_result(result)
        self._wake_waiters()

    def cancel(self) -> None:
        """End the operation without a result, because the process is stopping."""
        self._coroutine.close()
        self._result.cancel()
        self._wake_waiters()

    async def _wait_until_done(self, deadline: float) -> None:
        # `asyncio.wait` would do the same, and cost every prepare another turn of the loop.
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_at(deadline, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            _wake(waiter)


class SingleFlight(Generic[K]):
    """Operations by key. Operations of one key run one after the other.

    `async with SingleFlight[ClaimUID]() as operations:`, and in the block::

        operation = operations.find(uid, "prepare") or operations.start(uid, "prepare", work())
        result = await operation.wait(deadline)

    Leaving the block waits at most `SHUTDOWN_TIMEOUT_S` for running operations and cancels the
    rest.
    """

    def __init__(self) -> None:
        self._queues: dict[K, deque[Operation[Any]]] = {}
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._background = BackgroundTasks()

    async def __aenter__(self) -> Self:
        await self._background.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=SHUTDOWN_TIMEOUT_S)
        await self._background.__aexit__(kind, error, traceback)

    def find(self, key: K, kind: str) -> Operation[Any] | None:
        """The operation that a call may join: the last one of its key, if it is of the same kind.

        An operation of another kind is not overtaken, so prepare and unprepare of a claim happen
        in the order of their calls.
        """
        queue = self._queues.get(key)
        return queue[-1] if queue and queue[-1].kind == kind else None

    def start(self, key: K, kind: str, coroutine: Coroutine[Any, Any, T]) -> Operation[T]:
        """Start an operation, after all others of its key."""
        operation = Operation(key, kind, coroutine)
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(operation)
            return operation
        self._queues[key] = deque((operation,))
        run = partial(self._run_queue, key)
        self._tasks[key] = self._background.start_once(kind, run, key)
        return operation

    async def _run_queue(self, key: K) -> None:
        queue = self._queues[key]
        try:
            while queue:
                await queue[0].run()
                queue.popleft()
        finally:
            del self._queues[key], self._tasks[key]
            for operation in queue:
                operation.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
