"""One run of a controller's operation under strace: watched to its end, or struck at a point."""

import asyncio
from dataclasses import replace

import strace
from strace import MAIN, Kill

from campaign import cd_operations, points, requests
from campaign.cd_lane import Lane
from campaign.cd_operations import Operation
from campaign.outcomes import Recording, Row, Strike

END_S = 2
OFFSETS = (0, -1, 1, 0, -2, 2, 0, -3)
"""News that come together are read at once: so the number of an answer may move."""


async def record(lane: Lane, operation: Operation) -> Recording:
    """Watch every thread of one undisturbed run to the end."""
    await _arrange(lane, operation)
    log, node = lane.directory / "strace", lane.names
    with strace.attached(log, lane.threads(), requests.CALLS, is_following=True) as tracer:
        await operation.perform(lane)
    found, others = points.counted(requests.aims(tracer.end(), node))
    elsewhere = [(point, place) for point, place in found if place.thread != MAIN]
    assert not elsewhere, f"only the first thread is watched when it is struck: {elsewhere}"
    lane.statuses.setdefault(operation.name, cd_operations.told(lane.world.status()))
    await cd_operations.clear(lane)
    if lane.is_shared:
        # Told to end while it reads, a controller cannot know more than while it writes.
        found = [(point, place) for point, place in found if point.call != "recvfrom"]
    return Recording(found, others, str(lane.directory))


async def strike(lane: Lane, operation: Operation, row: Row) -> Strike:
    """Kill the controller at the row's point, or have it hand over; see how another goes on."""
    await _arrange(lane, operation)
    log, node = lane.directory / "strace", lane.names
    place = row.place
    if row.point.call == "recvfrom":
        offset = OFFSETS[(row.tries - 1) % len(OFFSETS)]
        place = replace(place, index=max(1, place.index + offset))
    kill = Kill(row.point.call, place.index, signal="SIGTERM" if lane.is_shared else "SIGKILL")
    tids = {lane.pid: MAIN}
    outcome, is_right = "", True
    with strace.attached(log, tids, requests.CALLS, kill):
        end = await _until_ended(lane, operation)
    calls = strace.parse(log.read_text(errors="replace"), tids)
    hit = points.struck(requests.aims(calls, node), row.point.call)
    try:
        if end:
            await cd_operations.clear(lane)
            return Strike(None, "", is_right=True, end=end)
        outcome = await _judge(lane, operation)
    except (AssertionError, TimeoutError) as error:
        outcome, is_right = f"{type(error).__name__}: {error}", False
        lane.renew()
    return Strike(hit, outcome, is_right, end)


async def _arrange(lane: Lane, operation: Operation) -> None:
    await lane.start()
    lane.is_marked = False
    await operation.arrange(lane)


async def _until_ended(lane: Lane, operation: Operation) -> str:
    """Let the operation go on until it is done, or the controller has ended.

    Returns:
        How the operation ended while the controller lived; empty when the controller ended.
    """
    working = asyncio.create_task(operation.perform(lane))
    ending = asyncio.create_task(lane.ended())
    await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        await working
        # Told to end, a controller may do its part before it does.
        await asyncio.wait((ending,), timeout=END_S if lane.is_shared else 0)
        if not ending.done():
            ending.cancel()
            return "it was done"
    working.cancel()
    await asyncio.wait((working,))
    code = await ending
    assert code == (0 if lane.is_shared else -9), f"it ended with {code}\n{lane.log()[-2000:]}"
    return ""


async def _judge(lane: Lane, operation: Operation) -> str:
    """Another controller finishes alone; then the domain goes, and the root was written once."""
    lane.note_mark()
    was_marked = lane.is_marked
    lane.forget()
    await lane.start()
    await lane.right(lambda: operation.wrong(lane))
    await cd_operations.clear(lane)
    roots = lane.roots()
    wanted = 0 if was_marked else 1
    assert roots == wanted, f"the root was written {roots} times, not {wanted}"
    return "finished by another; " + ("root was marked" if was_marked else "root written once")
