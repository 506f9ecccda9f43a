"""One run of an operation under strace: watched to its end, or killed at a point."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path

import grpc
import strace
from strace import MAIN, Kill

from campaign import findings, points
from campaign.lane import Lane
from campaign.operations import Operation
from campaign.outcomes import Recording, Row, Strike
from campaign.points import Place, Point

APPEAR_S = 20


async def record(lane: Lane, operation: Operation) -> Recording:
    """Watch every thread of one run to the end; then the process is killed, and all must hold."""
    await operation.arrange(lane)
    log = lane.directory / "strace"
    if operation.is_start:
        lane.launch(*strace.launching(log, points.CALLS))
        await operation.perform(lane)
        await lane.kill()
        calls = strace.parse(log.read_text(), {})
    else:
        with strace.attached(log, lane.threads(), points.CALLS, is_following=True) as tracer:
            await operation.perform(lane)
        calls = tracer.end()
        await lane.kill()
    found, others = points.changes(calls, lane.names)
    await lane.start()
    await operation.judge(lane)
    return Recording(found, others, str(lane.directory))


async def strike(lane: Lane, operation: Operation, row: Row) -> Strike:
    """Kill the plugin at the row's point, and see how it goes on.

    gRPC sends from whatever thread is at hand: with each further attempt others are tried.
    """
    point, attempt = row.point, row.tries
    place = row.place.moved(row.recorded_at, str(lane.directory))
    await operation.arrange(lane)
    log = lane.directory / "strace"
    if not place.path and attempt > 1:
        is_main = attempt % 2 == 0
        place = replace(place, thread=MAIN if is_main else "", index=(attempt + 1) // 2)
    strike_at = _start if operation.is_start else _call
    names, end = await strike_at(lane, operation, point, place, log)
    calls = strace.parse(log.read_text(), names)
    left = findings.left_behind(lane)
    await lane.kill()
    hit = points.fatal(calls, point.call, lane.names)
    try:
        await lane.start()
        outcome, is_right = await operation.judge(lane), True
    except (AssertionError, grpc.aio.AioRpcError, TimeoutError) as error:
        outcome, is_right = f"{type(error).__name__}: {error}", False
        await lane.kill()
    if left and is_right:
        outcome = f"{', '.join(left)} cleared away; {outcome}"
    return Strike(hit, outcome, is_right, end)


async def _call(
    lane: Lane, operation: Operation, point: Point, place: Place, log: Path
) -> tuple[Mapping[int, str], str]:
    """The operation is a call: its threads are there, or are made for it."""
    names = lane.threads()
    tids = {tid: name for tid, name in names.items() if name == place.thread}
    kill = Kill(point.call, place.index)
    with strace.attached(log, tids or names, points.CALLS, kill, is_following=not tids):
        end = await _until_dead(lane, operation.perform(lane))
    return tids or names, end


async def _start(
    lane: Lane, operation: Operation, point: Point, place: Place, log: Path
) -> tuple[Mapping[int, str], str]:
    """The operation is the start: strace has to be there before its threads are."""
    if place.thread != MAIN and "<" in point.target:
        # Nobody knows the file's name before. Such threads work for a while before they write.
        lane.launch()
        tids = {await asyncio.to_thread(_appeared, lane, place.thread): place.thread}
        with strace.attached(log, tids, points.CALLS, Kill(point.call, place.index)):
            end = await _until_dead(lane, operation.perform(lane))
        return tids, end
    if place.thread != MAIN and place.path:
        kill = Kill(point.call, place.nth, [place.path])
    else:
        kill = Kill(point.call, place.index)
    is_following = place.thread != MAIN
    lane.launch(*strace.launching(log, points.CALLS, kill, is_following=is_following))
    return {}, await _until_dead(lane, operation.perform(lane))


async def _until_dead(lane: Lane, work: Coroutine[None, None, None]) -> str:
    """Let the work go on until it is done or the plugin is dead; then it is dead in any case.

    Returns:
        How the work ended while the plugin lived; empty when it was killed before.
    """
    working = asyncio.create_task(work)
    dying = asyncio.create_task(lane.died())
    await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
    end = "" if dying.done() else "it was done"
    working.cancel()
    await asyncio.wait((working,))
    if not working.cancelled() and (error := working.exception()):
        # To whoever works with a plugin that dies, this is the way to notice.
        end = end and f"{type(error).__name__}: {error}"
    await lane.kill()
    await dying
    return end


def _appeared(lane: Lane, name: str) -> int:
    deadline = time.monotonic() + APPEAR_S
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for tid, found in strace.threads(lane.pid).items():
                if found == name:
                    return tid
        time.sleep(0.001)
    raise AssertionError(f"the plugin has no thread {name}")
