# SPDX-License-Identifier: Apache-2.0
"""Worker threads with a queue each, for blocking calls: NVML, SQLite, files.

The event loop submits calls and continues; a call that hangs blocks its own thread only. This is
not an executor, because an executor's two locks and one loop wake-up per call cost more than a
short NVML call.
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

SHUTDOWN_TIMEOUT_S = 5.0
"""How long leaving waits for the call in progress, so that the kubelet does not kill the pod."""


class ResultReceiver(Protocol):
    """Receives the result of a call. A future is one.

    It is called on the event loop, in the iteration that gets the result; the callbacks of a future
    run in the next iteration.
    """

    def cancelled(self) -> bool:
        """Whether the result is no longer needed. A call that has not started is dropped."""
        ...

    def set_result(self, result: Any, /) -> None:
        """The call returned."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """The call raised."""
        ...


class _Job(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    receiver: ResultReceiver


class _Outcome(NamedTuple):
    receiver: ResultReceiver
    value: Any
    error: BaseException | None


class Worker:
    """A thread that runs calls one at a time, in the order of their submission.

    `async with Worker("nvml") as worker: count = await worker.run(nvml.device_count)`. Arguments
    and results cross threads and must be values. Leaving runs the queued calls, for at most
    `SHUTDOWN_TIMEOUT_S`; a thread that hangs in a driver is left behind and ends with the process.

    Attributes:
        name: Name of the thread. The operating system shows its first 15 bytes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._outcomes: deque[_Outcome] = deque()
        self._is_delivery_due = False
        self._is_closed = False
        self._submitted_count = 0
        self._finished_count = 0
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event

    async def __aenter__(self) -> Self:
        self.start_thread()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        await self.wait_ended(asyncio.get_running_loop().time() + SHUTDOWN_TIMEOUT_S)

    @property
    def is_busy(self) -> bool:
        """Whether a call is running or queued."""
        return self._submitted_count != self._finished_count

    def start_thread(self) -> None:
        """Start the thread, for callers that do not use the worker as a context manager."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        # A daemon thread: a call that hangs in a driver must not keep the process from ending.
        threading.Thread(target=self._work, name=self.name, daemon=True).start()

    def close(self) -> None:
        """Accept no more calls. The thread ends after the queued calls."""
        self._is_closed = True
        self._jobs.put(None)

    async def wait_ended(self, deadline: float) -> bool:
        """Wait until the thread has ended. Returns False if it has not by the deadline."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._ended.wait()
        return self._ended.is_set()

    async def run(
        self, function: Callable[[*Ts], T], *arguments: *Ts, deadline: float | None = None
    ) -> T:
        """Call `function` in the thread and wait for its result.

        If the caller is cancelled or its deadline passes, a call that has not started is dropped;
        the result of a call in progress is discarded.

        Args:
            function: The function, which may block.
            arguments: Its arguments.
            deadline: Monotonic seconds of the loop's clock; None waits without a limit.

        Raises:
            TimeoutError: The deadline passed.
        """
        future = self.submit(function, *arguments)
        if deadline is None:
            return await future
        async with asyncio.timeout_at(deadline):
            return await future

    def submit(self, function: Callable[[*Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        """Submit a call without waiting. Cancelling the future drops the call if it is queued."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit_for(future, function, *arguments)
        return future

    def submit_for(
        self, receiver: ResultReceiver, function: Callable[[*Ts], Any], *arguments: *Ts
    ) -> None:
        """Submit a call and pass its result to `receiver`."""
        if self._is_closed:
            raise RuntimeError(f"worker {self.name} has ended")
        self._submitted_count += 1
        self._jobs.put(_Job(function, arguments, receiver))

    def _work(self) -> None:
        _name_thread(self.name)
        while (job := self._jobs.get()) is not None:
            # Read from another thread: at worst a call runs whose result is not needed.
            outcome = None if job.receiver.cancelled() else _run_job(job)
            self._finished_count += 1
            if outcome is not None:
                self._finish(outcome)
            del job, outcome  # an idle thread must not keep arguments and results alive
        with suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(self._ended.set)

    def _finish(self, outcome: _Outcome) -> None:
        self._outcomes.append(outcome)
        # The loop clears the flag before it empties the queue, so it also delivers an outcome that
        # was added while the flag was set: one wake-up serves all calls that end meanwhile.
        if not self._is_delivery_due:
            self._is_delivery_due = True
            with suppress(RuntimeError):  # the loop is already closed
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
                "message": f"a call on {self.name} failed after its caller had gone",
                "exception": error,
            }
        )


class WorkerGroup:
    """Worker threads that start one by one and end together.

    `async with WorkerGroup() as workers: gpu = workers.start_worker("gpu-0")`. Leaving waits for
    `shutdown_s` at most, even if several of them hang.
    """

    def __init__(self, shutdown_s: float = SHUTDOWN_TIMEOUT_S) -> None:
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
            await worker.wait_ended(deadline)

    def idle_worker(self, name: str) -> Worker:
        """A worker of this name; another one if the former one is busy, as it may hang."""
        idle = (worker for worker in self._workers if worker.name == name and not worker.is_busy)
        return next(idle, None) or self.start_worker(name)

    def start_worker(self, name: str) -> Worker:
        """Start another worker."""
        worker = Worker(name)
        worker.start_thread()
        self._workers.append(worker)
        return worker


def _run_job(job: _Job) -> _Outcome:
    try:
        return _Outcome(job.receiver, job.function(*job.arguments), None)
    except StopIteration as error:  # a future does not accept it
        wrapped = RuntimeError(f"{job.function} raised StopIteration")
        wrapped.__cause__ = error
        return _Outcome(job.receiver, None, wrapped)
    except BaseException as error:  # noqa: BLE001 - raised again in the caller
        return _Outcome(job.receiver, None, error)


def _name_thread(name: str) -> None:
    """Set the thread's name for `ps -L` and `strace`; Python 3.14 does so itself."""
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    with suppress(OSError):  # the file exists on Linux only
        comm.write_bytes(name.encode()[:15])
