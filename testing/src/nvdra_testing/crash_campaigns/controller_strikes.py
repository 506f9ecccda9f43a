# SPDX-License-Identifier: Apache-2.0
"""One run of a controller's operation under strace: recorded to its end, or struck at a write."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvdra_testing.crash_campaigns import api_writes, controller_operations, points, traced_requests
from nvdra_testing.crash_campaigns.controller_operations import Operation
from nvdra_testing.crash_campaigns.controller_sandbox import ControllerSandbox
from nvdra_testing.crash_campaigns.outcomes import PointResult, Recording, StrikeResult
from nvdra_testing.crash_campaigns.points import CallPosition, Target
from nvdra_testing.crash_campaigns.traced_requests import AFTER_ANSWER, TracedRequest
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import MAIN, Call, InjectedSignal


@dataclass(frozen=True)
class FailureMode:
    """What happens to the controller.

    Attributes:
        name: Its name in the report.
        signal: SIGKILL, or SIGTERM to let it shut down.
        has_standby: Whether a second replica waits for the lease.
    """

    name: str
    signal: str
    has_standby: bool


KILLED = FailureMode("killed", "SIGKILL", has_standby=False)
LEADER_KILLED = FailureMode("the leader killed", "SIGKILL", has_standby=True)
LEADER_TERMINATED = FailureMode("the leader told to end", "SIGTERM", has_standby=True)


async def record_controller(
    sandbox: ControllerSandbox, operation: Operation, failure: FailureMode
) -> Recording:
    """Record the calls of all threads in one undisturbed run."""
    await _arrange(sandbox, operation, failure)
    log = sandbox.directory / "strace"
    with strace.attach(log, sandbox.threads(), points.CALLS, is_following=True) as tracer:
        await operation.perform(sandbox)
    written, others = points.count_points(
        traced_requests.call_targets(tracer.detach(), sandbox.trace_names)
    )
    elsewhere = [(point, place) for point, place in written if place.thread != MAIN]
    assert not elsewhere, f"only the first thread is watched when it is struck: {elsewhere}"
    sandbox.statuses.setdefault(
        operation.name, controller_operations.comparable_status(sandbox.installation.status())
    )
    await controller_operations.delete_domain(sandbox)
    found = []
    for point, place in written:
        found.append((point, place))
        if not failure.has_standby:
            # A lease decides only who goes on and when, not what was written.
            found.append((point._replace(call=AFTER_ANSWER), place))
    return Recording(found, others, str(sandbox.directory))


async def strike_controller(
    sandbox: ControllerSandbox, operation: Operation, row: PointResult, failure: FailureMode
) -> StrikeResult:
    """Strike the controller at the row's call.

    And check that another one finishes the operation.
    """
    await _arrange(sandbox, operation, failure)
    log, tids = sandbox.directory / "strace", {sandbox.pid: MAIN}
    is_answered = row.point.call == AFTER_ANSWER
    kill = InjectedSignal(
        "sendto", row.place.index, signal="SIGSTOP" if is_answered else failure.signal
    )
    with strace.attach(log, tids, points.CALLS, kill):
        end = await _until_ended(sandbox, operation, row, failure)
    aims = traced_requests.call_targets(
        strace.parse(log.read_text(errors="replace"), tids), sandbox.trace_names
    )
    aim = _next_place(row, aims)
    if end:
        await controller_operations.delete_domain(sandbox)
        return StrikeResult(None, "", is_correct=True, end=end, next_place=aim)
    hit = points.point_of_death_in(aims, "sendto")
    if hit is not None and is_answered:
        hit = hit._replace(call=AFTER_ANSWER)
    try:
        return StrikeResult(
            hit,
            await _check_recovery(sandbox, operation, failure),
            is_correct=True,
            end="",
            next_place=aim,
        )
    except (AssertionError, TimeoutError) as error:
        sandbox.reset()
        outcome = f"{type(error).__name__}: {error}"
        return StrikeResult(hit, outcome, is_correct=False, end="", next_place=aim)


def _next_place(row: PointResult, aims: Sequence[tuple[Call, Target]]) -> CallPosition:
    """Where to strike next for the row's call: where this run made it, or later than this time.

    A controller makes several writes at the same time, in any order.
    """
    met = dict(points.count_points(aims)[0])
    later = replace(row.place, index=row.place.index + 1)
    return met.get(row.point._replace(call="sendto"), later)


async def _arrange(sandbox: ControllerSandbox, operation: Operation, failure: FailureMode) -> None:
    sandbox.set_standby(has_standby=failure.has_standby)
    await sandbox.start()
    sandbox.is_marked, sandbox.last_version = False, ""
    await operation.arrange(sandbox)
    # Calls that renew a lease are counted, too; between two renewals there is time for a run.
    await sandbox.wait_lease_renewed()
    sandbox.write_log.begin()


async def _until_ended(
    sandbox: ControllerSandbox, operation: Operation, row: PointResult, failure: FailureMode
) -> str:
    """Let the operation go on until it is done or the controller has ended.

    Returns:
        How the operation ended while the controller lived; empty if the controller ended.
    """
    working = asyncio.create_task(operation.perform(sandbox))
    ending = asyncio.create_task(
        _kill_after_answer(sandbox) if row.point.call == AFTER_ANSWER else sandbox.wait_ended()
    )
    await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        await working
        if not strace.was_signal_injected(sandbox.directory / "strace"):
            ending.cancel()
            await asyncio.wait((ending,))
            return "it was done"
        await ending  # a terminated leader finishes its work first
    working.cancel()
    await asyncio.wait((working,))
    code = await ending
    assert code == (0 if failure is LEADER_TERMINATED else -9), (
        f"ended with {code}\n{sandbox.log()[-2000:]}"
    )
    return ""


async def _kill_after_answer(sandbox: ControllerSandbox) -> int:
    """Kill the controller, which was stopped after a write, once the write is answered."""
    log = sandbox.directory / "strace"
    await sandbox.wait_until(lambda: strace.was_signal_injected(log))
    calls = strace.parse(log.read_text(errors="replace"), {sandbox.pid: MAIN})
    asked = [
        request for call in calls if (request := TracedRequest.from_call(call, sandbox.trace_names))
    ]
    written = sum(request.is_write for request in asked)
    await sandbox.wait_until(lambda: sandbox.write_log.answered() >= written)
    return sandbox.kill()


async def _check_recovery(
    sandbox: ControllerSandbox, operation: Operation, failure: FailureMode
) -> str:
    """Another controller finishes alone; then the domain is deleted. Its root is written once."""
    was_marked = await sandbox.was_marked()
    sandbox.discard_controller()
    await sandbox.start()
    await sandbox.wait_correct(lambda: operation.find_problem(sandbox))
    assert not (twice := api_writes.created_twice(sandbox.write_log.writes())), (
        f"made twice: {twice}"
    )
    await controller_operations.delete_domain(sandbox)
    is_told = failure is LEADER_TERMINATED
    assert not (wrong := api_writes.find_overlap(sandbox.write_log.writes(), is_told=is_told)), (
        wrong
    )
    roots = sandbox.root_span_count()
    wanted = 0 if was_marked else 1
    assert roots == wanted, f"the root was written {roots} times, not {wanted}"
    return "finished by another; " + ("root was marked" if was_marked else "root written once")
