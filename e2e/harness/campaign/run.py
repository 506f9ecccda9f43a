"""All strikes of an operation, on several lanes at once, until every recorded call was hit."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from campaign.outcomes import Campaign, Recording, Row, Strike
from campaign.points import Point

TRIES = 8
"""A call that another thread, or gRPC's rhythm, moves by one is met within a few runs."""
RECORDINGS = 2

L = TypeVar("L")


async def campaign(
    name: str,
    lanes: Sequence[L],
    record: Callable[[L], Awaitable[Recording]],
    strike: Callable[[L, Row], Awaitable[Strike]],
) -> Campaign:
    """Record the operation twice, strike at everything that was seen in either, judge each.

    Args:
        name: Of the operation.
        lanes: Where it can be done, each by itself.
        record: Do it undisturbed.
        strike: Do it, and strike at the row's point; `tries` says for which time.
    """
    began = time.monotonic()
    found = Campaign(name)
    _take(found, await _recordings(lanes, record))
    queue = list(reversed(found.rows))
    await asyncio.gather(*(_strikes(each, strike, found, queue) for each in lanes))
    if found.missed:
        _leave_to_chance(found, await _recordings(lanes, record))
    found.seconds = time.monotonic() - began
    return found


async def _recordings(
    lanes: Sequence[L], record: Callable[[L], Awaitable[Recording]]
) -> list[Recording]:
    """As many as there should be, shared among the lanes."""

    async def some(lane: L, count: int) -> list[Recording]:
        return [await record(lane) for _ in range(count)]

    shares = [len(range(at, RECORDINGS, len(lanes))) for at in range(len(lanes))]
    done = await asyncio.gather(*map(some, lanes, shares))
    return [recording for each in done for recording in each]


def _take(found: Campaign, recordings: Sequence[Recording]) -> None:
    seen: set[Point] = set()
    for recording in recordings:
        found.others |= recording.others
        for point, place in recording.points:
            if point not in seen:
                seen.add(point)
                found.rows.append(Row(point, place, recording.root))


def _leave_to_chance(found: Campaign, again: Sequence[Recording]) -> None:
    """Take out what was seen once: no run came to it again, nor do new recordings have it.

    A busy machine brings such calls about, as when a plugin makes its socket anew because nobody
    had answered on it in time.
    """
    usual = {point for recording in again for point, _ in recording.points}
    chance = [row for row in found.missed if row.point not in usual]
    found.rows = [row for row in found.rows if row not in chance]
    found.others.update({f"once, by chance: {row.point.target}": 1 for row in chance})


async def _strikes(
    lane: L,
    strike: Callable[[L, Row], Awaitable[Strike]],
    found: Campaign,
    queue: list[Row],
) -> None:
    """Take calls from the queue and put back those that were missed."""
    by_point = {row.point: row for row in found.rows}
    while queue:
        row = queue.pop()
        if row.is_hit:
            continue
        row.tries += 1
        result = await strike(lane, row)
        hit = by_point.get(result.hit) if result.hit else None
        if hit is not None:
            hit.is_hit = True
        told = hit or row
        if told.is_right and (hit or not result.is_right):
            told.outcome, told.is_right = result.outcome, result.is_right
        if not row.is_hit:
            row.misses.append(str(result.hit or result.end))
            row.place = result.aim or row.place
            if row.tries < TRIES:
                queue.insert(0, row)
