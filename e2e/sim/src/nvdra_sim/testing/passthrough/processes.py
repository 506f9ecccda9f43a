# SPDX-License-Identifier: Apache-2.0
"""Processes that write to sysfs or hold VFIO objects, and what the kernel says of them in /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvdra_sim.testing.passthrough import file_writer, gpu_holder, vfio_holder

PATIENCE_S = 60.0
"""How long something that must happen may take. An emulated processor needs a second for what
otherwise takes 20 ms, and the machine may be busy."""
LOOK_S = 0.05

SLEEPING = "S"
UNINTERRUPTIBLE = "D"
"""States of a process in /proc/<pid>/stat. Source: man 5 proc."""

PYTHON = (sys.executable, "-I", "-S")
REAL_HOLDER = (*PYTHON, str(Path(vfio_holder.__file__)))
"""The command of a holder on a real kernel."""
GPU_HOLDER = (*PYTHON, str(Path(gpu_holder.__file__)))


class NotReached(AssertionError):
    """What was waited for did not happen in `PATIENCE_S`."""


@dataclass(frozen=True)
class Opened:
    """What a holder says when it has opened what it should hold.

    Attributes:
        viable: Whether the group is viable; None if it could not be opened.
        failed: The step that failed; None if it holds.
        errno: The name of that step's error.
    """

    viable: bool | None
    failed: str | None
    errno: str | None


class Holder:
    """A process that holds VFIO objects until it is closed or killed."""

    def __init__(self, command: Sequence[str], *arguments: str) -> None:
        self._process = _start([*command, *arguments])
        said = _first_line(self._process)
        if not said:
            raise NotReached(f"{arguments} ended with {self._process.wait(PATIENCE_S)}")
        self.opened = Opened(**json.loads(said))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def close(self) -> None:
        """Let it close what it holds, and wait for its end."""
        self._process.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self._process.kill()
        self.close()


class Writer:
    """A process that makes one write. It says nothing more while the write blocks.

    Args:
        path: The file.
        text: What is written.
        around: A command that runs the writer as its child.
    """

    def __init__(self, path: Path, text: str, around: Sequence[str] = ()) -> None:
        program = [*PYTHON, str(Path(file_writer.__file__)), str(path), text]
        self._process = _start([*around, *program])
        if _first_line(self._process) != b"writing\n":
            raise NotReached(f"{path} was not opened: {self._process.wait(PATIENCE_S)}")

    @property
    def pid(self) -> int:
        """The process id of the writer, or of the command around it."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Send it SIGKILL, without waiting for its end."""
        self._process.kill()

    def close_input(self) -> None:
        """End its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None  # or `communicate` would flush a closed file

    def wait(self, timeout_s: float = PATIENCE_S) -> str:
        """What it says when the write has returned, `ok` or an error; empty if it was killed."""
        try:
            said, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise NotReached(f"writer {self.pid} is in state {state(self.pid)}") from error
        return said.decode().strip()


def state(pid: int) -> str | None:
    """The state of a process in one letter; None if there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def children(pid: int) -> list[int]:
    """The processes that have this parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields and int(fields[1]) == pid:
            found.append(int(path.name))
    return found


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Wait for a fact.

    Raises:
        NotReached: It did not become true in `PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise NotReached(f"after {PATIENCE_S:.0f} s, not true: {what}")
        time.sleep(LOOK_S)


def stays(is_so: Callable[[], object], seconds: float) -> bool:
    """Whether a fact is true all the time from now on."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not is_so():
            return False
        time.sleep(LOOK_S)
    return True


def kernel_lines(log: Path) -> Iterator[str]:
    """The messages that the kernel's log has now, oldest first.

    Args:
        log: /dev/kmsg, which gives a record for each read. Source: Documentation/ABI/testing/
            dev-kmsg of Linux.
    """
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(descriptor, 8192).decode(errors="replace")
            except BrokenPipeError:  # older records were overwritten meanwhile
                continue
            except BlockingIOError:
                return
            yield record.partition(";")[2].partition("\n")[0]
    finally:
        os.close(descriptor)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # Without a buffer, the first line takes nothing of what `communicate` reads after it.
    return subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name, which may contain spaces and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
