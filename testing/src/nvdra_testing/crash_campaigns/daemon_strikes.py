# SPDX-License-Identifier: Apache-2.0
"""One run of a daemon's operation under strace: recorded to its end, or struck at a call."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from nvdra_testing.crash_campaigns import daemon_calls, daemon_checks, points
from nvdra_testing.crash_campaigns.daemon_operations import DaemonOperation
from nvdra_testing.crash_campaigns.daemon_sandbox import DaemonSandbox, Struck
from nvdra_testing.crash_campaigns.outcomes import PointResult, Recording, StrikeResult
from nvdra_testing.crash_campaigns.points import CallPosition, KillPoint, Target
from nvdra_testing.crash_campaigns.traced_requests import AFTER_ANSWER, WRITES, TracedRequest
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import MAIN, Call, InjectedSignal, Tracer

AFTER_S: Final = 0.3
"""Calls that follow the end of an operation are made within this time."""

NAMING: Final = 1
"""The writes by which a thread names itself."""

_VARYING: Final = ("sendto", "fcntl", "write")


def record_daemon(sandbox: DaemonSandbox, operation: DaemonOperation) -> Recording:
    """Record the calls of all threads in one run, then kill the daemon and check the recovery."""
    operation.arrange(sandbox)
    with sandbox.traced(sandbox.directory / "strace", None) as tracer:
        operation.perform(sandbox)
        time.sleep(AFTER_S)
        calls = tracer.detach()
    aims = daemon_calls.call_targets(calls, sandbox.trace_names, is_start=operation.is_start)
    made, others = points.count_points(aims)
    sandbox.kill()
    operation.check_recovery(sandbox)
    found = []
    for point, place in made:
        found.append((point, place))
        if _is_write(point):
            found.append((point._replace(call=AFTER_ANSWER), place))
    return Recording(found, others, str(sandbox.directory))


def strike_daemon(
    sandbox: DaemonSandbox, operation: DaemonOperation, row: PointResult
) -> StrikeResult:
    """Strike the daemon at the row's call, and check that it recovers when it is started again."""
    operation.arrange(sandbox)
    log = sandbox.directory / "strace"
    is_answered = row.point.call == AFTER_ANSWER
    end, wrong, outcome = "", "", ""
    sandbox.write_log.begin()
    with _striking(sandbox, operation, row, log) as tracer:
        try:
            operation.perform(sandbox)
            time.sleep(AFTER_S)
            sandbox.raise_if_struck()
            end = "it was done"
        except Struck:
            if is_answered:
                _wait_answer(sandbox, log)
                wrong = _failure(lambda: operation.check_alive(sandbox))
        sandbox.kill()
        calls = tracer.detach()
    aims = daemon_calls.call_targets(calls, sandbox.trace_names, is_start=operation.is_start)
    hit = points.point_of_death_in(aims, _call(row.point))
    if hit is not None and is_answered:
        hit = hit._replace(call=AFTER_ANSWER)

    def check() -> None:
        nonlocal outcome
        daemon_checks.check_killed(sandbox)
        outcome = operation.check_recovery(sandbox)

    wrong = wrong or _failure(check)
    place = _next_place(row, aims)
    return StrikeResult(hit, wrong or outcome, not wrong, end, next_place=place)


@contextlib.contextmanager
def _striking(
    sandbox: DaemonSandbox, operation: DaemonOperation, row: PointResult, log: Path
) -> Iterator[Tracer]:
    """Trace the thread of the row's call, and send the signal there.

    At a start there is only the first thread. The other threads are followed, and the calls by
    which they name themselves count.
    """
    is_late = operation.is_slow and row.place.index > 1
    if is_late and row.point.call == "write" and row.place.thread != MAIN:
        with _striking_later(sandbox, row, log) as tracer:
            yield tracer
        return
    place, call = row.place, _call(row.point)
    number = "SIGSTOP" if row.point.call == AFTER_ANSWER else "SIGKILL"
    is_main = place.thread == MAIN
    is_following = operation.is_start and not is_main
    if place.path and not is_main and "<random>" not in row.point.target:
        kill = InjectedSignal(call, place.nth, [place.path], signal=number)
    else:
        naming = NAMING if is_following and call == "write" else 0
        kill = InjectedSignal(call, place.index + naming, signal=number)
    thread = MAIN if operation.is_start else place.thread
    with sandbox.traced(log, kill, thread, is_following=is_following) as tracer:
        yield tracer


@contextlib.contextmanager
def _striking_later(sandbox: DaemonSandbox, row: PointResult, log: Path) -> Iterator[Tracer]:
    """Trace the thread of the row's call alone, once it has made its first write.

    strace counts the calls of every thread that it follows, and the first thread, which writes the
    log, would reach the number before.
    """
    sandbox.open_gate()
    thread = row.place.thread
    sandbox.wait_until(lambda: _writes_of(sandbox, thread) > NAMING, f"the thread {thread}")
    made = _writes_of(sandbox, thread)
    nth = row.place.index + NAMING - made
    assert nth > 0, f"{row.point}: the thread {thread} has made {made} writes already"
    kill = InjectedSignal("write", nth)
    with sandbox.traced(log, kill, thread, is_following=False) as tracer:
        yield tracer


def _writes_of(sandbox: DaemonSandbox, thread: str) -> int:
    """How often a thread of the daemon has written, to its own name as well; 0 if there is none."""
    tids = [tid for tid, name in sandbox.threads().items() if name == thread]
    if not tids:
        return 0
    counts = Path(f"/proc/{sandbox.subject.pid}/task/{tids[0]}/io").read_text()
    return int(counts.partition("syscw: ")[2].split()[0])


def _wait_answer(sandbox: DaemonSandbox, log: Path) -> None:
    """Wait until the server has answered the write after which the daemon was stopped."""
    calls = strace.parse(log.read_text(errors="replace"), {sandbox.subject.pid: MAIN})
    asked = [
        request for call in calls if (request := TracedRequest.from_call(call, sandbox.trace_names))
    ]
    written = sum(request.is_write for request in asked)
    sandbox.wait_until(lambda: sandbox.write_log.answered() >= written, "the server's answer")


def _next_place(row: PointResult, aims: Sequence[tuple[Call, Target]]) -> CallPosition | None:
    """Where to strike next at a call that is found by its number among others of its name.

    How many others there are before it varies. It is struck where this run made it, or later than
    this time.
    """
    call = _call(row.point)
    if call not in _VARYING:
        return None
    made = dict(points.count_points(aims)[0])
    later = replace(row.place, index=row.place.index + 1)
    return made.get(row.point._replace(call=call), later)


def _call(point: KillPoint) -> str:
    return "sendto" if point.call == AFTER_ANSWER else point.call


def _is_write(point: KillPoint) -> bool:
    return point.call == "sendto" and point.target.partition(" ")[0] in WRITES


def _failure(check: Callable[[], None]) -> str:
    """What is wrong; empty if nothing is."""
    try:
        check()
    except (AssertionError, OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
