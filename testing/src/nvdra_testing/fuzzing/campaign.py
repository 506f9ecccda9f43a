# SPDX-License-Identifier: Apache-2.0
"""Runs targets for a time, and keeps what they have shown."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nvdra_testing.fuzzing import case_stream
from nvdra_testing.fuzzing.faults import Fault, Kind, Problem
from nvdra_testing.fuzzing.target import Program, Target
from nvdra_testing.fuzzing.verdict import START_CPU_S, Judge

_RECENT: Final = 128
"""A task beside may end the process so many cases later: a case takes less than a millisecond."""
_ENDING: Final = (Kind.DIED, Kind.HANG, Kind.OTHERS)
"""After these the program has ended."""
_SETTLE_S: Final = 3.0
"""What such a task may need."""
_LEAST_SHARE: Final = 0.5
"""Of the time of a target, for cases, however long its program took to start."""
LEAST_CASES: Final = 50
"""Of a target. Fewer say nothing, and a start on a busy machine may take all of its time."""
_MOST_EXTRA_S: Final = 60.0
"""Beyond the time of a target, for its least cases."""
_SHRINK_SHARE: Final = 0.1
"""Of the time of a target, for making an input smaller."""


class BadSampleError(Exception):
    """A valid case is not answered well: the target itself is wrong."""


@dataclass
class TargetResult:
    """What a target has shown.

    Attributes:
        failure: Why it could not be tried to the end; empty if it could.
    """

    target: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    restarts: int = 0
    failure: str = ""
    faults: list[Fault] = field(default_factory=list)

    @property
    def has_too_few(self) -> bool:
        """Whether so few cases were tried that no fault means nothing."""
        return not self.faults and self.cases < LEAST_CASES


class TargetRun:
    """One target for a time."""

    def __init__(self, target: Target, seed: int, say: Callable[[str], None]) -> None:
        self.result = TargetResult(target.name, seed)
        self._target = target
        self._say = say
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        self._batch = 0
        self._began = time.monotonic()

    def run(self, seconds: float, most_faults: int | None = None) -> TargetResult:
        """Try cases until the time is over and the least are tried, or so many faults are found."""
        with ExitStack() as self._stack, Judge().watching() as self._judge:
            try:
                self._program = self._opened()
                until = max(self._began + seconds, time.monotonic() + seconds * _LEAST_SHARE)
                self._try_until(until, seconds, most_faults)
            except BadSampleError as error:
                self.result.failure = str(error)
        self.result.seconds = time.monotonic() - self._began
        return self.result

    def _try_until(self, until: float, seconds: float, most_faults: int | None) -> None:
        def is_over() -> bool:
            late_s = time.monotonic() - until
            is_enough = late_s > 0 and self.result.cases >= LEAST_CASES
            return is_enough or late_s > _MOST_EXTRA_S or len(self.result.faults) == most_faults

        def visit(case: bytes) -> bool:
            self._try(case, seconds)
            return not is_over()

        while not is_over():
            name = f"{self._target.name}-{self.result.seed}-{self._batch}"
            case_stream.visit_batch(self._target.cases, name, visit)
            self._batch += 1

    def shows(self, fault: Fault) -> bool:
        """Whether a new process shows a fault again."""
        with ExitStack() as self._stack, Judge().watching() as self._judge:
            self._program = self._opened()
            return self._shows(fault.problem, fault.case)

    def _opened(self) -> Program:
        program = self._stack.enter_context(self._target.open())
        for sample in self._target.samples:
            problem = self._judge.judge(program, sample, START_CPU_S)
            if problem is not None and problem.kind not in (Kind.MEMORY, Kind.SLOW):  # imports
                raise BadSampleError(f"{self._target.name}: {sample[:200]!r}: {problem}")
        return program

    def _reopen(self) -> None:
        self._stack.close()
        self.result.restarts += 1
        self._program = self._opened()

    def _try(self, case: bytes, seconds: float) -> None:
        self.result.cases += 1
        problem = self._judge.judge(self._program, case)
        self._recent.append(case)
        if problem is None:
            return
        known = {fault.problem.signature: fault for fault in self.result.faults}
        found = known.get(problem.signature)
        if problem.kind in _ENDING:
            self._reopen()
        if found is not None:
            found.count += 1
            self._recent.clear()
            return
        passed = time.monotonic() - self._began
        if problem.kind is Kind.DIED:
            case = self._culprit(problem) or case
        fault = Fault(self._target.name, self.result.seed, self._batch, passed, problem, case)
        self.result.faults.append(fault)
        self._recent.clear()
        self._say(
            f"  ✗ {self._target.name} after {passed:.1f} s, case {self.result.cases}: "
            f"{problem.kind}: {problem.place}"
        )
        if problem.kind not in _ENDING:  # each try would take a start of the program
            fault.case = self._smaller(fault, seconds * _SHRINK_SHARE)

    def _culprit(self, problem: Problem) -> bytes | None:
        """Which of the last cases ends the process; None if none does alone."""
        suspects = list(self._recent)
        while len(suspects) > 1:
            earlier, later = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            suspects = earlier if self._shows(problem, *earlier) else later
        return suspects[0] if suspects and self._shows(problem, *suspects) else None

    def _shows(self, problem: Problem, *cases: bytes) -> bool:
        """Whether one of these cases shows the problem. The program runs afterwards."""
        again = self._first_problem(cases)
        if again is None and problem.kind is Kind.DIED:
            time.sleep(_SETTLE_S)
            again = self._first_problem(self._target.samples[:1])
        if again is not None and again.kind in _ENDING:
            self._reopen()
        return again is not None and again.signature == problem.signature

    def _first_problem(self, cases: Sequence[bytes]) -> Problem | None:
        found = (self._judge.judge(self._program, case) for case in cases)
        return next((problem for problem in found if problem is not None), None)

    def _smaller(self, fault: Fault, seconds: float) -> bytes:
        """The smallest input that is found in a time and shows the fault."""
        until, case = time.monotonic() + seconds, fault.case
        size = len(case) // 2
        while size and time.monotonic() < until:
            for start in range(0, len(case), size):
                candidate = case[:start] + case[start + size :]
                if time.monotonic() > until:
                    break
                if candidate and self._shows(fault.problem, candidate):
                    case = candidate
                    break
            else:
                size //= 2
            size = min(size, len(case) // 2)
        return case


def run(
    targets: Sequence[Target],
    seed: int,
    seconds: float,
    directory: Path,
    say: Callable[[str], None] = print,
) -> list[TargetResult]:
    """Run targets one after the other.

    Together they take about so many seconds, or longer if the least cases of each need it.
    """
    results: list[TargetResult] = []
    until = time.monotonic() + seconds
    for index, target in enumerate(targets):
        share = target.weight / sum(each.weight for each in targets[index:])
        result = TargetRun(target, seed, say).run(max(1.0, (until - time.monotonic()) * share))
        results.append(result)
        for number, fault in enumerate(result.faults, 1):
            fault.write(directory, number)
        say(
            f"  {target.name}: {result.cases} cases in {result.seconds:.0f} s, "
            f"{len(result.faults) or 'no'} faults"
        )
    return results


def conclusion(results: Sequence[TargetResult], directory: Path) -> str:
    """The last line. No faults of a target that was hardly tried are no success."""
    if count := count_faults(results):
        return f"✗ {count} faults, see {directory}"
    if few := [result.target for result in results if result.has_too_few]:
        return f"no faults, but too few cases of {', '.join(few)}: run it longer"
    return "✓ no faults"


def count_faults(results: Sequence[TargetResult]) -> int:
    """How many faults there are, with the targets that do not work."""
    return sum(len(result.faults) + bool(result.failure) for result in results)


def table(results: Sequence[TargetResult]) -> Iterator[str]:
    """The lines of a table of what was run, and of what was found."""
    yield f"{'target':24} {'cases':>8} {'seconds':>8} {'seed':>8} {'restarts':>8} {'faults':>6}"
    for each in results:
        yield (
            f"{each.target:24} {each.cases:8} {each.seconds:8.0f} {each.seed:8} {each.restarts:8} "
            f"{len(each.faults):6}"
        )
    for each in results:
        if each.failure:
            yield f"✗ {each.target} does not work: {each.failure}"
        elif each.has_too_few:
            yield f"{each.target}: too few cases, {each.cases} of at least {LEAST_CASES}"
        for fault in each.faults:
            yield (
                f"✗ {each.target}: {fault.problem.kind} ({fault.count} times, first after "
                f"{fault.seconds:.1f} s): {fault.problem.place}"
            )
