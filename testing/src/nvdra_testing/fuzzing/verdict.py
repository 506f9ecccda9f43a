# SPDX-License-Identifier: Apache-2.0
"""Hands a case to a program, watches it, and says what is wrong.

A busy machine makes nothing wrong: what counts is the processor time of the program itself, and the
wall clock only after a time in which every answer must have come.
"""

import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final

from nvdra_testing.fuzzing.faults import Kind, Problem
from nvdra_testing.fuzzing.target import Program
from nvdra_testing.fuzzing.watched_process import Usage

MAX_CPU_S: Final = 1.0
"""Processor time of the program for one case, what it does beside included."""
HANG_CPU_S: Final = 3.0
"""After so much processor time without an answer its clients have given up."""
START_CPU_S: Final = 60.0
"""As HANG_CPU_S, for the first cases of a program, which may still be at its start."""
HARD_STOP_S: Final = 30.0
"""Wall clock. A program that waits for a lock or a byte uses no processor time."""
MAX_GROWTH_KIB: Final = 64 * 1024
_LOG_BYTES: Final = 16_000
_LOOK_S: Final = 0.2
_MAIN_THREAD: Final = "Current thread"
"""Before the stack of the thread that has got the signal, which Python gives to the main thread."""


class Judge:
    """Judges the cases of one program after the other."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2)

    @contextmanager
    def watching(self) -> Iterator["Judge"]:
        """End the threads when the block is left."""
        try:
            yield self
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def judge(
        self, program: Program, case: bytes, hang_cpu_s: float = HANG_CPU_S
    ) -> Problem | None:
        """What is wrong with the program's conduct; None if nothing is. A hang is killed."""
        try:
            usage = Usage.begin(program.process.pid)
        except OSError:
            return _died(program)
        asked = self._threads.submit(program.exchange, case)
        other = self._threads.submit(program.ask_as_another)
        if (hang := self._wait(program, usage, hang_cpu_s, asked, other)) is not None:
            return hang
        try:
            wrong, wrong_to_other = asked.result(), other.result()
            cpu_s, growth_kib = usage.cpu_s(), usage.growth_kib()
        except (OSError, EOFError) as error:
            return _died(program, f"the connection was closed: {error}")
        if wrong:
            return Problem(Kind.UNEXPECTED if "Traceback" in wrong else Kind.WRONG_ANSWER, wrong)
        if wrong_to_other:
            return Problem(Kind.OTHERS, wrong_to_other)
        if growth_kib > MAX_GROWTH_KIB:  # first: to get memory takes the kernel time as well
            return Problem(Kind.MEMORY, f"{growth_kib // 1024} MiB")
        if cpu_s > MAX_CPU_S:
            return Problem(Kind.SLOW, f"{cpu_s:.1f} s")
        return None

    def _wait(
        self,
        program: Program,
        usage: Usage,
        hang_cpu_s: float,
        asked: Future[str],
        other: Future[str],
    ) -> Problem | None:
        waiting = {asked, other}
        stop = time.monotonic() + HARD_STOP_S
        while waiting:
            waiting = wait(waiting, _LOOK_S, FIRST_COMPLETED).not_done
            if not waiting or program.process.poll() is not None:
                return None  # the connections of a dead process are closed
            try:
                cpu_s = usage.cpu_s()
            except OSError:
                return None
            if cpu_s > hang_cpu_s or time.monotonic() > stop:
                kind = Kind.HANG if asked in waiting else Kind.OTHERS
                stack = _stack(program)
                program.process.kill()
                program.process.wait()
                self._threads.shutdown(wait=False, cancel_futures=True)
                self._threads = ThreadPoolExecutor(2)
                return Problem(kind, f"{stack}\nnothing after {cpu_s:.1f} s of processor time")
        return None


def _stack(program: Program) -> str:
    """What the program does, from its log: all of ours write their stacks at SIGUSR2."""
    before = program.log.stat().st_size
    program.process.send_signal(signal.SIGUSR2)
    time.sleep(_LOOK_S)
    with program.log.open("rb") as log:
        log.seek(before)
        found = log.read(_LOG_BYTES).decode(errors="replace")
    return found[max(0, found.find(_MAIN_THREAD)) :]


def _died(program: Program, why: str = "") -> Problem | None:
    """The end of a process that has ended; one that lives has only closed the connection."""
    try:
        code = program.process.wait(5)
    except subprocess.TimeoutExpired:
        code = None
    if code is None:
        return Problem(Kind.WRONG_ANSWER, f"no answer: {why}")
    with program.log.open("rb") as log:
        log.seek(max(0, log.seek(0, 2) - _LOG_BYTES))
        tail = log.read().decode(errors="replace")
    return Problem(Kind.DIED, f"{why}\n{tail}\nexit code {code}")
