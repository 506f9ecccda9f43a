"""What a process is doing, on SIGUSR2: the stacks of its threads and of its tasks.

The threads' stacks go to stderr at once, also from a process that hangs in a call; as soon as
Python runs again, threads and tasks are written to files. Source: spec/compute-domain.md §5.1.
"""

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

FILES: Final = (Path("/tmp/nvdra-stacks.dump"), Path("/tmp/goroutine-stacks.dump"))  # noqa: S108
"""The second is the reference's, which people's scripts collect."""

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def on_signal(files: Sequence[Path] = FILES) -> None:
    """From now on SIGUSR2 tells, and the process goes on. Called in the main thread.

    Args:
        files: Where to; each says the same.
    """
    faulthandler.unregister(signal.SIGUSR2)  # what it chains to, it learns only when it is new
    signal.signal(signal.SIGUSR2, lambda *_: _write(files))
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, chain=True)


def text() -> str:
    """The stacks of all threads, and of all tasks of the loop that runs in this one."""
    return "\n".join([*_threads(), *_tasks()])


def _write(files: Sequence[Path]) -> None:
    data = text().encode(errors="backslashreplace")
    for path in files:
        try:
            with os.fdopen(os.open(path, _FLAGS, 0o644), "wb") as file:
                file.write(data)
        except OSError as error:
            sys.stderr.write(f"Stacks cannot be written to {path}: {error.strerror}\n")


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f'Thread "{names.get(ident, ident)}"\n{"".join(traceback.format_stack(frame))}'


def _tasks() -> Iterator[str]:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs
        return
    for task in sorted(tasks, key=lambda task: task.get_name()):
        frames = traceback.StackSummary.extract(_awaited(task.get_coro()))
        yield f'Task "{task.get_name()}"\n{"".join(frames.format())}'


def _awaited(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of all that it waits for, outermost first.

    A task's own `get_stack` ends at the first.
    """
    while coroutine is not None:
        for frame, following in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom")):
            if hasattr(coroutine, frame):
                where = getattr(coroutine, frame)
                if where is not None:
                    yield where, where.f_lineno
                coroutine = getattr(coroutine, following)
                break
        else:
            return
