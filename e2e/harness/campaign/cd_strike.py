"""One run of a controller's operation under strace: watched to its end, or struck at a write."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import strace
from strace import MAIN, Call, Kill

from campaign import cd_operations, points, requests, writers
from campaign.cd_lane import Lane
from campaign.cd_operations import Operation
from campaign.outcomes import Recording, Row, Strike
from campaign.points import Place, Target
from campaign.requests import ANSWERED, Request


@dataclass(frozen=True)
class Blow:
    """What happens to the controller.

    Attributes:
        name: For the report.
        signal: SIGKILL, or SIGTERM to tell it to end.
        is_awaited: A second replica waits for the lease.
    """

    name: str
    signal: str
    is_awaited: bool


KILLED = Blow("killed", "SIGKILL", is_awaited=False)
LEADER_KILLED = Blow("the leader killed", "SIGKILL", is_awaited=True)
LEADER_TOLD = Blow("the leader told to end", "SIGTERM", is_awaited=True)


async def record(lane: Lane, operation: Operation, blow: Blow) -> Recording:
    """Watch every thread of one undisturbed run to the end."""
    await _arrange(lane, operation, blow)
    log = lane.directory / "strace"
    with strace.attached(log, lane.threads(), points.CALLS, is_following=True) as tracer:
        await operation.perform(lane)
    written, others = points.counted(requests.aims(tracer.end(), lane.names))
    elsewhere = [(point, place) for point, place in written if place.thread != MAIN]
    assert not elsewhere, f"only the first thread is watched when it is struck: {elsewhere}"
    lane.statuses.setdefault(operation.name, cd_operations.told(lane.world.status()))
    await cd_operations.clear(lane)
    found = []
    for point, place in written:
        found.append((point, place))
        if not blow.is_awaited:
            # A lease makes no difference to what was written, only to who goes on and when.
            found.append((point._replace(call=ANSWERED), place))
    return Recording(found, others, str(lane.directory))


async def strike(lane: Lane, operation: Operation, row: Row, blow: Blow) -> Strike:
    """Strike the controller at the row's point, and see how another goes on."""
    await _arrange(lane, operation, blow)
    log, tids = lane.directory / "strace", {lane.pid: MAIN}
    is_answered = row.point.call == ANSWERED
    kill = Kill("sendto", row.place.index, signal="SIGSTOP" if is_answered else blow.signal)
    with strace.attached(log, tids, points.CALLS, kill):
        end = await _until_ended(lane, operation, row, blow)
    aims = requests.aims(strace.parse(log.read_text(errors="replace"), tids), lane.names)
    aim = _aim(row, aims)
    if end:
        await cd_operations.clear(lane)
        return Strike(None, "", is_right=True, end=end, aim=aim)
    hit = points.struck(aims, "sendto")
    if hit is not None and is_answered:
        hit = hit._replace(call=ANSWERED)
    try:
        return Strike(hit, await _judge(lane, operation, blow), is_right=True, end="", aim=aim)
    except (AssertionError, TimeoutError) as error:
        lane.renew()
        outcome = f"{type(error).__name__}: {error}"
        return Strike(hit, outcome, is_right=False, end="", aim=aim)


def _aim(row: Row, aims: Sequence[tuple[Call, Target]]) -> Place:
    """Where to strike next for the row's point: where this run had it, or later than this time.

    A controller writes several things side by side, now in this order, now in that.
    """
    met = dict(points.counted(aims)[0])
    later = replace(row.place, index=row.place.index + 1)
    return met.get(row.point._replace(call="sendto"), later)


async def _arrange(lane: Lane, operation: Operation, blow: Blow) -> None:
    lane.share(is_shared=blow.is_awaited)
    await lane.start()
    lane.is_marked, lane.seen = False, ""
    await operation.arrange(lane)
    # The calls that renew a lease count as well; between two renewals there is time for a run.
    await lane.renewed()
    lane.writers.begin()


async def _until_ended(lane: Lane, operation: Operation, row: Row, blow: Blow) -> str:
    """Let the operation go on until it is done, or the controller has ended.

    Returns:
        How the operation ended while the controller lived; empty when the controller ended.
    """
    working = asyncio.create_task(operation.perform(lane))
    ending = asyncio.create_task(_answered(lane) if row.point.call == ANSWERED else lane.ended())
    await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        await working
        if not strace.is_struck(lane.directory / "strace"):
            ending.cancel()
            await asyncio.wait((ending,))
            return "it was done"
        await ending  # told to end, it has done its part before it does
    working.cancel()
    await asyncio.wait((working,))
    code = await ending
    assert code == (0 if blow is LEADER_TOLD else -9), f"ended with {code}\n{lane.log()[-2000:]}"
    return ""


async def _answered(lane: Lane) -> int:
    """Kill the controller that was stopped after a write, once that is answered; its exit code."""
    log = lane.directory / "strace"
    await lane.until(lambda: strace.is_struck(log))
    calls = strace.parse(log.read_text(errors="replace"), {lane.pid: MAIN})
    asked = [request for call in calls if (request := Request.of(call, lane.names))]
    written = sum(request.is_write for request in asked)
    await lane.until(lambda: lane.writers.answered() >= written)
    return lane.kill()


async def _judge(lane: Lane, operation: Operation, blow: Blow) -> str:
    """Another controller finishes alone; then the domain goes, and the root was written once."""
    was_marked = await lane.was_marked()
    lane.forget()
    await lane.start()
    await lane.right(lambda: operation.wrong(lane))
    assert not (twice := writers.made_twice(lane.writers.writes())), f"made twice: {twice}"
    await cd_operations.clear(lane)
    is_told = blow is LEADER_TOLD
    assert not (wrong := writers.contested(lane.writers.writes(), is_told=is_told)), wrong
    roots = lane.roots()
    wanted = 0 if was_marked else 1
    assert roots == wanted, f"the root was written {roots} times, not {wanted}"
    return "finished by another; " + ("root was marked" if was_marked else "root written once")
