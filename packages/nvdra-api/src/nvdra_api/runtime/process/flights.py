"""One operation per key at a time; whoever asks for the same meanwhile joins it.

Work belongs to the claim, not to the call: a caller that gives up leaves the operation running, and
its retry finds it. Source: style.md §13.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from nvdra_api.types.errors import Reason, RetryableError

K = TypeVar("K", bound=str)
T = TypeVar("T")

SHUTDOWN_S = 5.0
"""How long leaving waits for operations in progress before it cancels them."""


@dataclass(slots=True, eq=False)
class _Flight:
    kind: str
    start: Callable[[], Coroutine[Any, Any, Any]]
    landed: asyncio.Future[Any]
    joined: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])

    async def is_over(self, deadline: float) -> bool:
        """Wait until it has landed, at most until `deadline`; leaves it alone in any case.

        `asyncio.wait` would do, and cost every prepare one more turn of the loop.
        """
        if self.landed.done():
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self.joined.add(turn)
        timer = loop.call_at(deadline, _wake, turn)
        try:
            await turn
        finally:
            timer.cancel()
            self.joined.discard(turn)
        return self.landed.done()

    def tell(self) -> None:
        """Wake everyone who joined: it has landed."""
        for turn in self.joined:
            _wake(turn)


class Flights(Generic[K]):
    """Operations by key, each in a task of its own; kinds of one key follow one another.

    `async with Flights[ClaimUID]() as flights:` and in the block
    `await flights.join(uid, "prepare", start, deadline)`.

    A call joins when the last operation of its key, running or waiting, is of its kind; otherwise
    it is queued behind that one: prepare and unprepare of a claim happen in the order they were
    asked for. All operations of one kind return the same type.

    Leaving the block waits at most `SHUTDOWN_S` and then cancels.
    """

    def __init__(self) -> None:
        self._queues: dict[K, deque[_Flight]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=SHUTDOWN_S)
            for task in late:
                task.cancel()
        await self._group.__aexit__(kind, error, traceback)

    async def join(
        self, key: K, kind: str, start: Callable[[], Coroutine[Any, Any, T]], deadline: float
    ) -> T:
        """Wait for the operation, starting it unless it is under way.

        Args:
            key: What it is about; one operation at a time.
            kind: What is done, for instance `prepare`; also its name in the error.
            start: Makes the coroutine; called only when this call begins the operation.
            deadline: When to stop waiting, by the loop's clock, in monotonic seconds.

        Raises:
            RetryableError: `DeadlineExceeded`; the operation goes on.
            Exception: Whatever the operation raised, to everyone who joined it.
        """
        flight = self._joinable(key, kind) or self._begin(key, kind, start)
        if not await flight.is_over(deadline):
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{kind} of {key} is not done yet",
                "it goes on, and the next call waits for the same work",
                key=key,
            )
        if flight.landed.cancelled():
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{kind} of {key} was interrupted: this process is stopping",
                "the next call takes it up again",
                key=key,
            )
        return cast("T", flight.landed.result())

    def _joinable(self, key: K, kind: str) -> _Flight | None:
        queue = self._queues.get(key)
        return queue[-1] if queue and queue[-1].kind == kind else None

    def _begin(self, key: K, kind: str, start: Callable[[], Coroutine[Any, Any, Any]]) -> _Flight:
        flight = _Flight(kind, start, asyncio.get_running_loop().create_future())
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(flight)
            return flight
        self._queues[key] = deque((flight,))
        task = self._group.create_task(self._fly(key), name=f"{kind} {key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return flight

    async def _fly(self, key: K) -> None:
        """Carry out everything queued for a key, one after the other."""
        queue = self._queues[key]
        try:
            while queue:
                await _carry_out(queue[0])
                queue.popleft()
        finally:
            del self._queues[key]
            for flight in queue:
                flight.landed.cancel()
                flight.tell()


async def _carry_out(flight: _Flight) -> None:
    """One operation's failure is the answer to its callers and must not reach the group."""
    try:
        result = await flight.start()
    except Exception as error:  # noqa: BLE001 - raised again in everyone who joined
        flight.landed.set_exception(error)
        flight.landed.exception()  # told: whoever asked may have gone, which is no fault of anybody
    else:
        flight.landed.set_result(result)
    flight.tell()


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
