"""Named threads with a queue each, for calls that block: NVML, SQLite, files.

The loop hands work over and goes on; a call that hangs keeps its own thread busy and nobody else.
An executor is not used: its two locks and a wake-up of the loop per call cost more than a short
NVML call does.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SHUTDOWN_S = 5.0
"""How long leaving waits for the call in progress; longer, and the kubelet kills the pod first."""


class Receiver(Protocol):
    """Who is told how a call ended; a future is one.

    Told on the loop, in the turn that hears of it; a future's own callbacks run in the next.
    """

    def cancelled(self) -> bool:
        """Whether nobody waits any more: a call that has not begun is dropped."""
        ...

    def set_result(self, result: Any, /) -> None:
        """It returned."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """It raised."""
        ...


class _Job(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    receiver: Receiver


class _Outcome(NamedTuple):
    receiver: Receiver
    value: Any
    error: BaseException | None


class Worker:
    """A thread that runs calls one after the other, in the order they were handed over.

    `async with Worker("nvml") as worker: count = await worker.run(nvml.count)`. Arguments and
    results cross threads and must be values. Leaving lets the queue run dry, then waits at most
    `SHUTDOWN_S`; a thread that hangs in hardware is left behind and dies with the process.

    Attributes:
        name: Also the thread's name as the operating system shows it, cut to 15 bytes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._outcomes: deque[_Outcome] = deque()
        self._is_delivery_due = False
        self._is_closed = False
        self._given = 0
        self._done = 0
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        await self.ended(asyncio.get_running_loop().time() + SHUTDOWN_S)

    @property
    def is_busy(self) -> bool:
        """Whether a call is running, hanging or waiting for its turn."""
        return self._given != self._done

    def begin(self) -> None:
        """Start the thread; for who does not use the block."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        # A daemon: a call that hangs in a driver must not keep the process from ending.
        threading.Thread(target=self._work, name=self.name, daemon=True).start()

    def close(self) -> None:
        """Take no more calls; the thread ends once its queue has run dry."""
        self._is_closed = True
        self._jobs.put(None)

    async def ended(self, deadline: float) -> bool:
        """Wait until the thread has ended; False when it has not by the deadline."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._ended.wait()
        return self._ended.is_set()

    async def run(
        self, function: Callable[[*Ts], T], *arguments: *Ts, deadline: float | None = None
    ) -> T:
        """Call `function` in the thread and wait for what it returns or raises.

        Work that has not begun when its waiter is gone, cancelled or past its deadline, is dropped;
        work that has begun goes on and its outcome is lost.

        Args:
            function: What to call; it may block.
            arguments: Values for it.
            deadline: By the loop's clock, in monotonic seconds; none waits for ever.

        Raises:
            TimeoutError: The deadline passed.
        """
        future = self.start(function, *arguments)
        if deadline is None:
            return await future
        async with asyncio.timeout_at(deadline):
            return await future

    def start(self, function: Callable[[*Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        """Hand a call over without waiting; cancel the future to drop it while it is queued."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.hand(future, function, *arguments)
        return future

    def hand(self, receiver: Receiver, function: Callable[[*Ts], Any], *arguments: *Ts) -> None:
        """Hand a call over and have `receiver` told of its end."""
        if self._is_closed:
            raise RuntimeError(f"worker {self.name} has ended")
        self._given += 1
        self._jobs.put(_Job(function, arguments, receiver))

    def _work(self) -> None:
        _name_thread(self.name)
        while (job := self._jobs.get()) is not None:
            # Read from another thread: at worst a call runs although nobody waits any more.
            outcome = None if job.receiver.cancelled() else _called(job)
            self._done += 1
            if outcome is not None:
                self._finish(outcome)
            del job, outcome  # an idle thread must not keep arguments and results alive
        with suppress(RuntimeError):  # the loop was closed without us: nobody to tell
            self._loop.call_soon_threadsafe(self._ended.set)

    def _finish(self, outcome: _Outcome) -> None:
        self._outcomes.append(outcome)
        # The loop lowers the flag before it empties the queue, so an outcome that finds it raised
        # is still picked up: one wake-up serves all that finish until the loop gets there.
        if not self._is_delivery_due:
            self._is_delivery_due = True
            with suppress(RuntimeError):  # the loop was closed without us: nobody to tell
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_delivery_due = False
        while self._outcomes:
            receiver, value, error = self._outcomes.popleft()
            if receiver.cancelled():
                if error is not None:
                    self._report_lost(error)
            elif error is not None:
                receiver.set_exception(error)
            else:
                receiver.set_result(value)

    def _report_lost(self, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {
                "message": f"a call on {self.name} failed after its waiter had gone",
                "exception": error,
            }
        )


class Workers:
    """Threads that are made one by one and end together.

    `async with Workers() as threads: board = threads.started("gpu-0")`. However many of them hang,
    leaving waits for `shutdown_s` once.
    """

    def __init__(self, shutdown_s: float = SHUTDOWN_S) -> None:
        self._shutdown_s = shutdown_s
        self._workers: list[Worker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        deadline = asyncio.get_running_loop().time() + self._shutdown_s
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            await worker.ended(deadline)

    def started(self, name: str) -> Worker:
        """One more thread."""
        worker = Worker(name)
        worker.begin()
        self._workers.append(worker)
        return worker


def _called(job: _Job) -> _Outcome:
    try:
        return _Outcome(job.receiver, job.function(*job.arguments), None)
    except StopIteration as error:  # a future refuses this one
        wrapped = RuntimeError(f"{job.function} raised StopIteration")
        wrapped.__cause__ = error
        return _Outcome(job.receiver, None, wrapped)
    except BaseException as error:  # noqa: BLE001 - raised again where the call is waited for
        return _Outcome(job.receiver, None, error)


def _name_thread(name: str) -> None:
    """Let `ps -L` and `strace` find the thread; Python 3.14 does it by itself."""
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    with suppress(OSError):  # no such file elsewhere than on Linux: a convenience
        comm.write_bytes(name.encode()[:15])
