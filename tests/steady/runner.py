# SPDX-License-Identifier: Apache-2.0
"""Runs units beside busy processes, and reads what pytest reports of them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.steady import plan, records
from tests.steady.plan import Unit
from tests.steady.records import UnitResult

BUSY = "while True: pass"
INTERRUPTED, NO_TESTS = 2, 5
"""Exit statuses of pytest."""
FRUGAL = {"GOMAXPROCS": "1", "GOGC": "400"}
"""As `make component`: a kube-apiserver starts with half the work."""
LONGEST_MESSAGE = 300


class Report(NamedTuple):
    """What the report of one pytest says.

    Attributes:
        passed: Test without parameters → how many of its cases passed.
        red: Test → the message of its first failure.
        seconds: Test → seconds of all its cases.
    """

    passed: dict[str, int]
    red: dict[str, str]
    seconds: dict[str, float]


class Runner:
    """Runs units on lanes until the time is up or it is stopped."""

    def __init__(self, units: Sequence[Unit], commit: str, *, deadline: float, lanes: int) -> None:
        """Create it.

        Args:
            units: What is due, in order.
            commit: The commit that is checked out.
            deadline: Monotonic seconds after which no unit is to end.
            lanes: How many units run at the same time.
        """
        self._units = list(units)
        self._commit = commit
        self._deadline = deadline
        self._lanes = lanes
        self._lock = threading.Lock()
        self._has_begun = False
        self._is_stopping = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, record: Callable[[Unit, UnitResult, Report], None]) -> None:
        """Run units, first those that run side by side. `record` gets each one that has ended."""
        try:
            with ThreadPoolExecutor(self._lanes) as pool:
                lanes = [pool.submit(self._lane, number, record) for number in range(self._lanes)]
                for lane in lanes:
                    lane.result()
            while unit := self._take(is_alone=True):
                self._run(unit, 0, record)
        finally:
            self._is_stopping = True

    def interrupt(self) -> None:
        """End the running units as Ctrl-C does; they clean up."""
        self._is_stopping = True
        for process in tuple(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)

    def _lane(self, number: int, record: Callable[[Unit, UnitResult, Report], None]) -> None:
        while unit := self._take(is_alone=False):
            self._run(unit, number, record)

    def _take(self, *, is_alone: bool) -> Unit | None:
        with self._lock:
            if self._is_stopping:
                return None
            known = [each for each in self._units if each.is_alone is is_alone]
            unit = plan.next_fitting(known, self._deadline - time.monotonic())
            if unit is None and known and not self._has_begun:
                unit = known[0]  # longer than the slice: else it would never run
            if unit is not None:
                self._units.remove(unit)
                self._has_begun = True
            return unit

    def _run(
        self, unit: Unit, lane: int, record: Callable[[Unit, UnitResult, Report], None]
    ) -> None:
        folder = records.LOGS
        name = f"{unit.path.replace('/', '.').removesuffix('.py')}.{unit.round}"
        xml, log = folder / f"{name}.xml", folder / f"{name}.log"
        xml.unlink(missing_ok=True)
        started, began = datetime.now(UTC), time.monotonic()
        file = records.file_hash(records.ROOT / unit.path)
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv(unit, lane, xml),
                cwd=records.ROOT,
                env={**os.environ, **FRUGAL},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            status = process.wait()
            self._running.discard(process)
        if status == INTERRUPTED or self._is_stopping:
            return  # a test that is interrupted may also fail
        report = read_report(xml, status)
        result = UnitResult(
            unit.path,
            unit.round,
            file,
            self._commit,
            started.isoformat(timespec="seconds"),
            round(time.monotonic() - began, 1),
            round(os.getloadavg()[0], 1),
            len({*report.passed, *report.red}),
            report.red,
            is_whole=not unit.tests,
        )
        with self._lock:
            record(unit, result, report)
        if not report.red:
            log.unlink()
        xml.unlink(missing_ok=True)


def argv(unit: Unit, lane: int, report: Path) -> list[str]:
    """The command that runs a unit."""
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    options += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
    if unit.path.startswith(plan.E2E):
        options.append(f"--lab=steady-{lane}")
    if unit.is_alone:
        options.append("--soak")  # without it they are skipped until the lab changes
    return [sys.executable, "-m", "pytest", *options, *(unit.tests or (unit.path,))]


def read_report(path: Path, status: int) -> Report:
    """Read a report of the family xunit1, whose cases name their files.

    Args:
        path: The report.
        status: The exit status of pytest.
    """
    passed: dict[str, int] = {}
    red: dict[str, str] = {}
    seconds: dict[str, float] = {}
    cases = ElementTree.parse(path).iter("testcase") if path.exists() else ()
    for case in cases:
        name = f"{case.get('file')}::{case.get('name', '').partition('[')[0]}"
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time", "0"))
        failure = next((each for each in case if each.tag in ("failure", "error")), None)
        if failure is not None:
            red.setdefault(name, failure.get("message", "").partition("\n")[0][:LONGEST_MESSAGE])
        elif case.find("skipped") is None:
            passed[name] = passed.get(name, 0) + 1
    if status not in (0, NO_TESTS) and not red:
        red["pytest"] = f"exit status {status}"
    return Report(passed, red, seconds)


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep the machine busy during the block."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.extend(
            subprocess.Popen([sys.executable, "-c", BUSY], stderr=subprocess.DEVNULL)
            for _ in range(count)
        )
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
