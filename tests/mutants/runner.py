# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of mutants, each in a copy of the repository that has this one fault."""

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import scratch_tree
from tests.mutants.mutant import Mutant
from tests.mutants.scratch_tree import ScratchTree

UNIT_TIMEOUT_S = 180.0
"""For the unit tests of one mutant; a fault that makes them hang is noticed by that."""
COMPONENT_TIMEOUT_S = 900.0
"""For its component tests. pytest ends each after 300 s, with its start: a shorter limit would take
a test that is slow on a busy machine for one that has noticed the fault."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    LIVED = "LIVED"
    EXPLAINED = "explained"
    NOT_RUN = "not run"
    BROKEN = "BROKEN"
    """Its old text is not found once, or its tests do not run."""


@dataclass(frozen=True, slots=True)
class Result:
    """One mutant and its outcome.

    Attributes:
        by: The test that failed, or what is broken.
        seconds: How long its tests ran.
    """

    mutant: Mutant
    outcome: Outcome
    by: str = ""
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        """Whether somebody must look at it."""
        return self.outcome in (Outcome.LIVED, Outcome.BROKEN)


def run(mutants: Sequence[Mutant], workers: int, *, has_component: bool) -> Iterator[Result]:
    """Run the mutants' tests, and yield each result in the order of the mutants.

    Args:
        mutants: Which ones.
        workers: How many copies are worked in side by side.
        has_component: Whether component tests are run, too. Without them, a mutant that only they
            can notice is not run.
    """
    with ExitStack() as stack:
        free: SimpleQueue[ScratchTree] = SimpleQueue()
        for _ in range(workers):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="nvdra-mutants-"))
            free.put(stack.enter_context(scratch_tree.copied(Path(directory))))
        pool = stack.enter_context(ThreadPoolExecutor(workers))

        def judge(mutant: Mutant) -> Result:
            tree = free.get()
            try:
                return _judged(tree, mutant, has_component=has_component)
            finally:
                free.put(tree)

        yield from pool.map(judge, mutants)


def unmutated(tests: tuple[str, ...]) -> str:
    """Run tests without a fault. Returns what failed; empty if they pass."""
    with (
        tempfile.TemporaryDirectory(prefix="nvdra-mutants-") as directory,
        scratch_tree.copied(Path(directory)) as tree,
    ):
        done = tree.run_tests(tests, timeout_s=3600)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _judged(tree: ScratchTree, mutant: Mutant, *, has_component: bool) -> Result:
    if mutant.explained:
        return Result(mutant, Outcome.EXPLAINED, mutant.explained)
    groups = [(mutant.unit, UNIT_TIMEOUT_S)] if mutant.unit else []
    if has_component:
        groups += [((test,), COMPONENT_TIMEOUT_S) for test in mutant.component]
    if not groups:
        return Result(mutant, Outcome.NOT_RUN, "its tests are component tests")
    try:
        text = mutant.applied((tree.root / mutant.file).read_text())
    except ValueError as error:
        return Result(mutant, Outcome.BROKEN, str(error))
    result = Result(mutant, Outcome.BROKEN)
    seconds = 0.0
    with tree.changed(mutant.file, text):
        for tests, timeout_s in groups:
            result = _run_group(tree, mutant, tests, timeout_s)
            seconds += result.seconds
            if result.is_wrong:
                break
    return replace(result, seconds=seconds)


def _run_group(
    tree: ScratchTree, mutant: Mutant, tests: tuple[str, ...], timeout_s: float
) -> Result:
    """Run tests of which one must fail."""
    started = time.monotonic()
    try:
        done = tree.run_tests(tests, timeout_s)
    except subprocess.TimeoutExpired:
        return Result(mutant, Outcome.TIMED_OUT, tests[0], time.monotonic() - started)
    seconds = time.monotonic() - started
    if done.returncode == 0:
        return Result(mutant, Outcome.LIVED, ", ".join(tests), seconds)
    if done.returncode != 1:  # they could not be collected, or do not exist
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return Result(mutant, Outcome.BROKEN, "".join(last), seconds)
    failed = _FAILED.search(done.stdout)
    return Result(mutant, Outcome.KILLED, failed[1] if failed else tests[0], seconds)
