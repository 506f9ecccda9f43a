# SPDX-License-Identifier: Apache-2.0
"""Throws exceptions into the tasks of a running program, where each waits.

The program runs unchanged, with its real loop. Its environment (`environment`) makes the
interpreter import `sitecustomize.py` of a directory, which gives the loop a task factory: the
coroutine of each task is wrapped, and passes everything on until a fault is to be thrown. A fault
is thrown as asyncio delivers a cancellation: what the task awaits is cancelled, and the innermost
`await` raises the fault, as it does when what it awaits has failed. A thread listens on a Unix
socket, so that the program has no task more.

    variables = task_faults.environment(directory)  # start the program with them
    tasks = task_faults.connect(directory, "nvdra-webhook").tasks()
"""

import asyncio
import json
import socket
import threading
import types
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nvdra_runtime.process import background_tasks

VARIABLE: Final = "NVDRA_TASK_FAULTS"
ERRORS: Final[Mapping[str, Callable[[], Exception]]] = {
    "RecursionError": lambda: RecursionError("maximum recursion depth exceeded"),
    "UnicodeEncodeError": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"),
    "MemoryError": MemoryError,
    "OSError": lambda: OSError(28, "No space left on device"),
    "Exception": lambda: Exception("thrown by a test"),
}
_SITE: Final = f"""\
import os
import sys
from pathlib import Path

name = next((n for n in map(lambda a: Path(a).name, sys.orig_argv) if n.startswith("nvdra-")), "")
if name and "{VARIABLE}" in os.environ:
    from nvdra_testing.faults import task_faults
    task_faults.install(Path(os.environ["{VARIABLE}"]) / name)
"""


@dataclass(frozen=True)
class RunningTask:
    """One task of the program.

    Attributes:
        id: Increases with each task that is created.
        name: Its name.
        work: The qualified name of its coroutine.
        parent: The task that has created it; 0 if a callback has.
        is_ours: Whether its coroutine is one of the driver's packages.
        is_supervised: Whether `background_tasks` runs it.
        is_repeated: Whether it is repeated after a failure.
        is_backing_off: Whether it waits before it is repeated.
    """

    id: int
    name: str
    work: str
    parent: int
    is_ours: bool
    is_supervised: bool
    is_repeated: bool
    is_backing_off: bool


class Connection:
    """A connection to a program that was started with `environment`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tasks(self) -> list[RunningTask]:
        """Its running tasks, the oldest first; that of its main function is the first."""
        return [RunningTask(**each) for each in self._ask({"throw": ""})]

    def throw(self, task: RunningTask, error: str) -> bool:
        """Throw an exception of `ERRORS` into a task. Returns whether it still runs."""
        return bool(self._ask({"throw": error, "id": task.id}))

    def _ask(self, request: Mapping[str, Any]) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(self._path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(connection.makefile("rb").readline())


def environment(directory: Path) -> Mapping[str, str]:
    """The variables with which a program listens below this directory, whose path is short."""
    (directory / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(directory), VARIABLE: str(directory)}


def connect(directory: Path, program: str) -> Connection:
    """The connection to a program that has this directory in its environment."""
    return Connection(directory / program)


class _Throwable(Coroutine[Any, Any, Any]):
    """A coroutine that passes everything on to another one, until there is a fault to throw."""

    def __init__(self, inner: Any, number: int, parent: int) -> None:
        self.inner = inner
        self.number = number
        self.parent = parent
        self.fault: Exception | None = None

    def send(self, value: Any) -> Any:
        return self.inner.send(value)

    def throw(self, *error: Any) -> Any:
        fault, self.fault = self.fault, None
        if fault is None:
            return self.inner.throw(*error)
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        return self.inner.throw(fault)

    def close(self) -> None:
        self.inner.close()

    def __await__(self) -> Any:
        raise TypeError("only a task runs it")


class _Tasks:
    """The tasks of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._count = 0

    def create(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any
    ) -> "asyncio.Task[Any]":
        self._count += 1
        try:
            creator = asyncio.current_task(loop)
        except RuntimeError:  # the loop does not run yet
            creator = None
        parent = 0 if creator is None else _throwable(creator).number
        return asyncio.Task(_Throwable(coroutine, self._count, parent), loop=loop, **how)

    def listen(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen()
            while True:
                connection, _ = listener.accept()
                with connection, connection.makefile("rwb") as stream:
                    answer: Future[Any] = Future()
                    self._loop.call_soon_threadsafe(
                        self._answer, json.loads(stream.readline()), answer
                    )
                    stream.write(json.dumps(answer.result(timeout=20)).encode() + b"\n")

    def _answer(self, request: Mapping[str, Any], answer: "Future[Any]") -> None:
        running = {_throwable(task).number: task for task in asyncio.all_tasks(self._loop)}
        if not request["throw"]:
            answer.set_result([vars(_described(running[number])) for number in sorted(running)])
            return
        task = running.get(request["id"])
        if task is not None:
            _throwable(task).fault = ERRORS[request["throw"]]()
            task.cancel()
        answer.set_result(task is not None)


def _throwable(task: "asyncio.Task[Any]") -> _Throwable:
    coroutine: Any = task.get_coro()
    assert isinstance(coroutine, _Throwable)
    return coroutine


def _described(task: "asyncio.Task[Any]") -> RunningTask:
    throwable = _throwable(task)
    inner = throwable.inner
    file = inner.cr_code.co_filename if isinstance(inner, types.CoroutineType) else ""
    work = str(getattr(inner, "__qualname__", inner))
    is_supervised = file == background_tasks.__file__
    awaited = getattr(inner, "cr_await", None)
    return RunningTask(
        id=throwable.number,
        name=task.get_name(),
        work=work,
        parent=throwable.parent,
        is_ours="/nvdra_" in file,
        is_supervised=is_supervised,
        is_repeated=is_supervised and work == "_repeat",
        is_backing_off=getattr(awaited, "__name__", "") == "_back_off",
    )


def install(path: Path) -> None:
    """Have the loop of this process listen on the socket; `sitecustomize` calls it."""
    run = asyncio.Runner.run

    def run_with_faults(runner: asyncio.Runner, main: Coroutine[Any, Any, Any], **how: Any) -> Any:
        loop = runner.get_loop()
        tasks = _Tasks(loop)
        loop.set_task_factory(tasks.create)
        threading.Thread(target=tasks.listen, args=(path,), daemon=True).start()
        return run(runner, main, **how)

    asyncio.Runner.run = run_with_faults  # type: ignore[assignment,method-assign]
