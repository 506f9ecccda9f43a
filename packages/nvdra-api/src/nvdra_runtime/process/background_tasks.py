# SPDX-License-Identifier: Apache-2.0
"""Tasks that run in the background of a block. What tenants can influence never ends the process.

Every task that outlives the call that starts it is started here. One that fails unexpectedly is
logged with its traceback, counted, and repeated with back-off, while all others go on. So a loop
must be one that can be run again: what it subscribes to is subscribed in a constructor, and it
begins with a look at everything. A loop over the objects of several claims, domains or GPUs puts
what it does for each into `contain`, so that it gets to the next one at once.

`ENDS_PROCESS` names the tasks that end the process instead. Source:
docs/decisions/processes.md, "Which tasks may end the process?".
"""

import asyncio
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self

from nvdra_api.errors import DriverError

from nvdra_runtime.process import task_failures
from nvdra_runtime.process.backoff import Backoff

ENDS_PROCESS: Final[Mapping[str, str]] = {
    "lease": "a controller that does not renew its lease may not be the leader any more, and two "
    "leaders would write the same objects; only the API server's administrators influence it",
    "instance lock": "another instance of the plugin has the node, and two would give the same "
    "device to two claims; only root of the node influences it",
    "warm-up": "the driver was replaced while this instance stood by, and glibc identifies a "
    "library by its path, so that only a new process opens the new one; this one serves no claim",
}
"""The tasks whose failure ends the process, by their names, and why; all others are repeated."""

REPEAT_BACKOFF: Final = Backoff(first_s=0.2, ceiling_s=30.0)
"""The first one is short, because most failures are of one object, which the loop has dropped."""

_RESET_S: Final = 60.0
"""A task that has run for so long, twice the longest delay, begins with the first delay again."""

_NAME: Final[ContextVar[str]] = ContextVar("task", default="main")
"""The name of the background task in whose context code runs."""

Run = Callable[[], Awaitable[None]]
"""What a task does: called again after each failure."""


class BackgroundTasks:
    """The tasks that run while a block runs; leaving it cancels them.

    `async with BackgroundTasks() as tasks: tasks.start("cleanup", self._clean)`. A failure of a
    task of `ENDS_PROCESS` cancels the block and the other tasks, and is raised in a group.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks = weakref.WeakSet[asyncio.Task[None]]()  # the group holds those that run

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()
        await self._group.__aexit__(kind, error, traceback)

    def cancel(self) -> None:
        """Cancel the tasks that run now."""
        for task in self._tasks:
            task.cancel()

    def start(self, name: str, run: Run, of: str = "") -> asyncio.Task[None]:
        """Start a task that is repeated until `run` returns.

        Args:
            name: Name of the task in the metric, the log, and `ENDS_PROCESS`.
            run: What it does.
            of: Which of several tasks of this name it is, such as a key.
        """
        return self._start(_repeat(name, run), name, of)

    def start_once(self, name: str, run: Run, of: str = "") -> asyncio.Task[None]:
        """Start a task for one object, which is not repeated: the caller's loop comes back to it.

        Its failure is logged and counted. `run` is not called if the task is cancelled before.
        """
        return self._start(_run_once(name, run), name, of)

    def _start(
        self, work: Coroutine[Any, Any, None], name: str, of: str = ""
    ) -> asyncio.Task[None]:
        task = self._group.create_task(work, name=f"{name} {of}".rstrip())
        self._tasks.add(task)
        return task


@asynccontextmanager
async def running(**runs: Run) -> AsyncIterator[None]:
    """Run each of these in a task while the block runs, and cancel the tasks at its end.

    The keyword is the name of the task: `running(clique_label=…)` starts the task "clique label".

    Raises:
        ExceptionGroup: A task of `ENDS_PROCESS` has failed.
    """
    async with BackgroundTasks() as tasks:
        for keyword, run in runs.items():
            tasks.start(_name(keyword), run)
        yield


async def run_all(**runs: Run) -> None:
    """Run each of these in a task, named as by `running`, until all have returned."""
    async with BackgroundTasks() as tasks:
        started = [tasks.start(_name(keyword), run) for keyword, run in runs.items()]
        await asyncio.wait(started)


class contain:
    """Keep an unexpected failure of one object from others: log it, count it, and go on.

    `with contain("A claim cannot be checked", claim=str(ref)) as contained: …`; afterwards
    `contained.error` is the exception, if there was one. Cancellation passes, and so does a
    `DriverError`, which is an answer and no failure.

    Attributes:
        error: The unexpected exception; None if there was none.
    """

    __slots__ = ("_fields", "_message", "error")

    def __init__(self, message: str, /, **fields: object) -> None:
        self._message = message
        self._fields = fields
        self.error: Exception | None = None

    def __enter__(self) -> "contain":
        """Begin with one object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Note an exception. It counts as a failure of the task that this runs in."""
        if not isinstance(error, Exception) or isinstance(error, DriverError):
            return False
        self.error = error
        task_failures.note(_NAME.get(), self._message, error, **self._fields)
        return True


async def _repeat(name: str, run: Run) -> None:
    _NAME.set(name)
    clock = asyncio.get_running_loop().time
    failures = 0
    while True:
        began = clock()
        try:
            await run()
            return
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            cause: BaseException = error  # a library's: this task was not cancelled
        except Exception as error:
            if name in ENDS_PROCESS:
                raise
            cause = error
        failures = 1 if clock() - began >= _RESET_S else failures + 1
        delay_s = REPEAT_BACKOFF.delay(failures, random.random())  # noqa: S311 - spreads load
        message = "A task has failed unexpectedly and is repeated"
        task_failures.note(name, message, cause, failures=failures, again_in_s=round(delay_s, 1))
        del cause  # its traceback has the frames of what has failed
        await _back_off(delay_s)


async def _run_once(name: str, run: Run) -> None:
    _NAME.set(name)
    try:
        await run()
    except Exception as error:  # noqa: BLE001 - noted, and the others go on
        task_failures.note(name, "A task for one object has failed unexpectedly", error)


def _name(keyword: str) -> str:
    return keyword.replace("_", " ")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _back_off(delay_s: float) -> None:
    await asyncio.sleep(delay_s)
