# SPDX-License-Identifier: Apache-2.0
"""Runs a guest to its end, and shows what its command says while it runs."""

from __future__ import annotations

import os
import resource
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from nvdra_sim.testing.real_kernel.console import Phase, Progress

START_S = 300.0
"""A start takes 9 to 16 s on a machine that does nothing else. It must end on a busy one, too."""


@dataclass(frozen=True)
class Run:
    """A guest that has ended.

    Attributes:
        progress: How far it came.
        seconds: How long it ran.
        processor_s: How long processors worked for it, which is no longer on a busy machine.
        is_late: Whether it was ended because it had used up its time.
        qemu_status: The exit status of QEMU if it has ended by itself: 0 after a panic or a
            power-off of the guest, another one if QEMU could not start it.
    """

    progress: Progress
    seconds: float
    processor_s: float
    is_late: bool
    qemu_status: int | None


def run(command: Sequence[str], environment: dict[str, str], limit_s: float) -> Run:
    """Run a guest. Its process ends with this call, and with this process.

    Args:
        command: The command of QEMU.
        environment: Its variables.
        limit_s: How long all of it may take. A start has `START_S` of it.
    """
    began = time.monotonic()
    processor_began = _processor_s()
    progress = Progress()
    is_late = False
    qemu_status = None
    with _started(command, environment) as process:
        assert process.stdout is not None
        lines = _Lines(process.stdout)
        while progress.phase is not Phase.ENDED:
            allowed_s = START_S if progress.phase is Phase.STARTING else limit_s
            line = lines.next(began + min(allowed_s, limit_s))
            if line is None:
                is_late = not lines.has_ended
                qemu_status = process.wait() if lines.has_ended else None
                break
            former, progress = progress, progress.after(line)
            if former == progress:
                print(f"  {line}", flush=True)
    seconds = time.monotonic() - began
    return Run(progress, seconds, _processor_s() - processor_began, is_late, qemu_status)


def _processor_s() -> float:
    """The processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Lines:
    """The lines of a pipe, with a deadline for each."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)
        self.has_ended = False

    def next(self, deadline: float) -> str | None:
        """The next line; None at the end of the pipe (`has_ended`) or at the deadline."""
        while b"\n" not in self._rest:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = os.read(self._pipe.fileno(), 65536)
            if not data:
                self.has_ended = True
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        # What a terminal would show of a line that is written several times.
        return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


@contextmanager
def _started(
    command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    # The kernel kills QEMU if this process is killed itself.
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
