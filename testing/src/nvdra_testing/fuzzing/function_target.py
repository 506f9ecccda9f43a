# SPDX-License-Identifier: Apache-2.0
"""A target that is a function of ours: it runs in another process, which is watched.

The function is in a module of `targets`. It does with the bytes what the program does, and lets
those exceptions pass that the program does not expect.
"""

import functools
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

from hypothesis.strategies import SearchStrategy

from nvdra_testing.fuzzing.target import Program, Target

_PROGRAM: Final = "nvdra_testing.fuzzing.function_child"
_MAX_LOG: Final = 8 << 20


class _Child:
    """The process of all functions; a new one takes its place when it has ended."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="fuzz-", dir="/dev/shm")
        self.log = Path(self._directory.name, "log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start the process, unless it lives."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._process.communicate()
        self.log.write_bytes(b"")  # what it says of its end is its own
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self._directory.name,
                env={**os.environ, "TMPDIR": self._directory.name},
            )

    def call(self, name: str, case: bytes) -> str:
        """Call a function, and return the traceback of what it raised."""
        if self.log.stat().st_size > _MAX_LOG:
            os.truncate(self.log, 0)
        into, out = _pipes(self.process)
        for part in (name.encode(), case):
            into.write(struct.pack(">I", len(part)) + part)
        into.flush()
        return _read(out, struct.unpack(">I", _read(out, 4))[0]).decode()


@dataclass
class _Function:
    name: str
    child: _Child

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self.child.process

    @property
    def log(self) -> Path:
        return self.child.log

    def exchange(self, case: bytes) -> str:
        return self.child.call(self.name, case)

    def ask_as_another(self) -> str:
        return ""


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _read(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError("the process has ended")
    return found


@functools.cache
def _shared_child() -> _Child:
    return _Child()


@contextmanager
def _function(function: Callable[[bytes], None]) -> Iterator[Program]:
    child = _shared_child()
    child.start()
    yield _Function(f"{function.__module__}:{function.__name__}", child)


def target(
    function: Callable[[bytes], None],
    cases: SearchStrategy[bytes],
    samples: Sequence[bytes],
    weight: float = 1.0,
) -> Target:
    """The target of a function, by whose name it is called."""
    name = function.__name__.replace("_", "-")
    return Target(name, cases, samples, lambda: _function(function), weight)
