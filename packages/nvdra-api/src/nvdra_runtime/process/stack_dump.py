# SPDX-License-Identifier: Apache-2.0
"""Dumps the stacks of all threads and tasks on SIGUSR2.

The stacks of the threads go to stderr at once, even if the process hangs in a call. Once Python
code runs again, the stacks of threads and tasks are written to files.
Source: docs/reference/compute-domain.md, "Command lines and signals".
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

DUMP_FILES: Final = (Path("/tmp/nvdra-stacks.dump"), Path("/tmp/goroutine-stacks.dump"))  # noqa: S108
"""The second one is the reference driver's, which existing scripts collect."""

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def install_signal_handler(files: Sequence[Path] = DUMP_FILES) -> None:
    """Make SIGUSR2 dump the stacks. Must be called in the main thread.

    Args:
        files: The files to write; all get the same content.
    """
    faulthandler.unregister(signal.SIGUSR2)  # it reads the handler to chain to when it registers
    signal.signal(signal.SIGUSR2, lambda *_: _write(files))
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, chain=True)


def format_stacks() -> str:
    """Format the stacks of all threads, and of all tasks of the loop of this thread."""
    return "\n".join([*_threads(), *_tasks()])


def _write(files: Sequence[Path]) -> None:
    data = format_stacks().encode(errors="backslashreplace")
    for path in files:
        try:
            with os.fdopen(os.open(path, _FLAGS, 0o644), "wb") as file:
                file.write(data)
        except OSError as error:
            sys.stderr.write(f"Cannot write the stacks to {path}: {error.strerror}\n")


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
        frames = traceback.StackSummary.extract(_coroutine_frames(task.get_coro()))
        yield f'Task "{task.get_name()}"\n{"".join(frames.format())}'


def _coroutine_frames(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of the coroutines that it awaits, outermost first.

    `Task.get_stack` returns the first one only.
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
