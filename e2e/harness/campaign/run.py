"""All strikes of an operation, on several lanes at once, until every recorded call was hit."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from apiserver import ApiServer

from campaign import lane, strike
from campaign.lane import Lane
from campaign.operations import Operation
from campaign.points import Place, Point

LANES = 3
TRIES = 8
"""A call that another thread, or gRPC's rhythm, moves by one is met within a few runs."""


@dataclass
class Row:
    """One recorded call, and what came of being killed there.

    Attributes:
        recorded_at: Directory of the lane where it was met.
        tries: Runs that aimed at it.
        is_hit: Whether a process has died exactly here.
        outcome: Of that run, or of one that aimed at it and went wrong.
        misses: Where the process died instead, or how the operation ended.
    """

    point: Point
    place: Place
    recorded_at: str
    tries: int = 0
    is_hit: bool = False
    outcome: str = ""
    is_right: bool = True
    misses: list[str] = field(default_factory=list)


@dataclass
class Campaign:
    """What was found for one operation.

    Attributes:
        rows: By recorded call, in order.
        others: What was recorded and changes nothing, by kind.
        seconds: How long it took.
    """

    operation: str
    rows: list[Row] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def missed(self) -> list[Row]:
        """Calls that no run has died at."""
        return [row for row in self.rows if not row.is_hit]

    @property
    def wrong(self) -> list[Row]:
        """Calls after which something was not as it must be."""
        return [row for row in self.rows if not row.is_right]


async def campaign(server: ApiServer, operation: Operation) -> Campaign:
    """Record the operation twice, strike at everything that was seen in either, judge each."""
    began = time.monotonic()
    found = Campaign(operation.name)
    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(lane.opened(server)) for _ in range(LANES)]
        await asyncio.gather(*(operation.make_ready(each) for each in lanes))
        recordings = await asyncio.gather(*(strike.record(each, operation) for each in lanes[:2]))
        _take(found, recordings)
        queue = list(reversed(found.rows))
        await asyncio.gather(*(_strikes(each, operation, found, queue) for each in lanes))
        if found.missed:
            again = await asyncio.gather(*(strike.record(each, operation) for each in lanes[:2]))
            _leave_to_chance(found, again)
    found.seconds = time.monotonic() - began
    return found


def _take(found: Campaign, recordings: Sequence[strike.Recording]) -> None:
    seen: set[Point] = set()
    for recording in recordings:
        found.others |= recording.others
        for point, place in recording.points:
            if point not in seen:
                seen.add(point)
                found.rows.append(Row(point, place, recording.root))


def _leave_to_chance(found: Campaign, again: Sequence[strike.Recording]) -> None:
    """Take out what was seen once: no run came to it again, nor do new recordings have it.

    A busy machine brings such calls about, as when a plugin makes its socket anew because nobody
    had answered on it in time.
    """
    usual = {point for recording in again for point, _ in recording.points}
    chance = [row for row in found.missed if row.point not in usual]
    found.rows = [row for row in found.rows if row not in chance]
    found.others.update({f"once, by chance: {row.point.target}": 1 for row in chance})


async def _strikes(lane: Lane, operation: Operation, found: Campaign, queue: list[Row]) -> None:
    """Take calls from the queue and put back those that were missed."""
    by_point = {row.point: row for row in found.rows}
    while queue:
        row = queue.pop()
        if row.is_hit:
            continue
        row.tries += 1
        place = row.place.moved(row.recorded_at, str(lane.directory))
        result = await strike.strike(lane, operation, row.point, place, row.tries)
        hit = by_point.get(result.hit) if result.hit else None
        if hit is not None:
            hit.is_hit = True
        told = hit or row
        if told.is_right and (hit or not result.is_right):
            told.outcome, told.is_right = result.outcome, result.is_right
        if not row.is_hit:
            row.misses.append(str(result.hit or result.end))
            if row.tries < TRIES:
                queue.insert(0, row)
