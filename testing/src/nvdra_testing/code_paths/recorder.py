# SPDX-License-Identifier: Apache-2.0
"""Runs a program of ours and records which of its functions one operation runs.

python recorder.py OUTPUT ENTRY PROGRAM ARGUMENTS...

The first SIGPROF begins the recording and the second ends it: OUTPUT then has, as JSON, the
functions that ran for the operation, and the longest chain of them that ends in a call of NVML.
ENTRY says where an operation begins: the end of a file's name, such as
`kubeletplugin/grpc_service.py`. What other work of the program runs meanwhile is left out: a chain
goes on in the tasks and in the jobs of worker threads that the operation starts, and nowhere else.

This file uses nothing but the standard library, so that it can record the program of an older tree.
"""

import asyncio
import contextvars
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

OURS: Final = f"{os.sep}packages{os.sep}"
NVML: Final = "pynvml.py"
Chain = tuple[CodeType, ...]

_callers: contextvars.ContextVar[Chain] = contextvars.ContextVar("callers", default=())


class Recorder:
    """The functions of the operation, in the order of their first call."""

    def __init__(self, output: Path, entry: str) -> None:
        self._output = output
        self._entry = entry
        self._is_recording = False
        self._functions: dict[CodeType, None] = {}
        self._to_nvml: Chain = ()

    def install(self) -> None:
        """Look at every call from now on, in every thread, and follow tasks and jobs."""
        sys.setprofile(self._on_event)
        threading.setprofile(self._on_event)
        signal.signal(signal.SIGPROF, lambda *_: self._toggle())
        create = asyncio.BaseEventLoop.create_task

        @functools.wraps(create)
        def create_task(
            loop: asyncio.BaseEventLoop, work: Any, *, context: Any = None, **how: Any
        ) -> Any:
            inherited = context or contextvars.copy_context()
            if self._is_recording:
                inherited.run(_callers.set, self._chain(sys._getframe(1)))
            return create(loop, work, context=inherited, **how)

        asyncio.BaseEventLoop.create_task = create_task  # type: ignore[method-assign,assignment]

    def follow_jobs(self, worker: Any) -> None:
        """Continue the chain in the jobs of a class of worker threads."""
        submit = worker.submit_for

        @functools.wraps(submit)
        def submit_for(
            self_: Any, receiver: Any, function: Callable[..., Any], *arguments: Any
        ) -> None:
            if not self._is_recording:
                submit(self_, receiver, function, *arguments)
                return
            context = contextvars.copy_context()
            context.run(_callers.set, self._chain(sys._getframe(1)))
            submit(self_, receiver, functools.partial(context.run, function), *arguments)

        worker.submit_for = submit_for

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_recording:
            return
        file = frame.f_code.co_filename
        if OURS in file:
            chain = self._chain(frame)
            if any(code.co_filename.endswith(self._entry) for code in chain):
                self._functions.setdefault(frame.f_code)
        elif file.endswith(NVML):
            chain = self._from_entry(self._chain(frame))
            if len(chain) > len(self._to_nvml):
                self._to_nvml = chain

    def _chain(self, frame: FrameType | None) -> Chain:
        """Our functions from the start of a task's first ancestor to this frame."""
        own: list[CodeType] = []
        while frame is not None:
            if OURS in frame.f_code.co_filename:
                own.append(frame.f_code)
            frame = frame.f_back
        return (*_callers.get(), *reversed(own))

    def _from_entry(self, chain: Chain) -> Chain:
        for place, code in enumerate(chain):
            if code.co_filename.endswith(self._entry):
                return chain[place:]
        return ()

    def _toggle(self) -> None:
        if self._is_recording:
            self._is_recording = False
            self._write()
        self._is_recording = not self._functions

    def _write(self) -> None:
        found = {
            "functions": [_described(code) for code in self._functions],
            "to_nvml": [_described(code) for code in self._to_nvml],
        }
        new = self._output.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.replace(self._output)


def _described(code: CodeType) -> dict[str, Any]:
    lines = [number for *_, number in code.co_lines() if number is not None]
    return {
        "file": code.co_filename.rpartition(f"{os.sep}src{os.sep}")[2],
        "name": code.co_qualname,
        "first": min([code.co_firstlineno, *lines]),
        "last": max(lines),
    }


def main(output: str, entry: str, program: str, *arguments: str) -> int:
    """Run the program. Returns its exit status."""
    recorder = Recorder(Path(output), entry)
    (point,) = metadata.entry_points(group="console_scripts", name=program)
    sys.argv = [program, *arguments]
    run = point.load()
    from nvdra_runtime.process import worker

    recorder.follow_jobs(worker.Worker)
    recorder.install()
    return int(run() or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
