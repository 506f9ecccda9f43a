# SPDX-License-Identifier: Apache-2.0
"""Runs a campaign: strikes an operation in several sandboxes until every selected call was hit."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nvdra_testing.crash_campaigns import golden_points
from nvdra_testing.crash_campaigns.outcomes import (
    CampaignResult,
    PointResult,
    Recording,
    StrikeResult,
)
from nvdra_testing.crash_campaigns.points import KillPoint
from nvdra_testing.crash_campaigns.selection import Selection

MAX_TRIES = 24
"""Another thread or gRPC's timing can move a call by one, and a controller makes four writes at the
same time in any order: if each run hits one of the four by chance, eight runs miss one in ten."""
RECORDINGS = 2

S = TypeVar("S")


async def run_campaign(
    operation: str,
    sandboxes: Sequence[S],
    record: Callable[[S], Awaitable[Recording]],
    strike: Callable[[S, PointResult], Awaitable[StrikeResult]],
    selection: Selection,
) -> CampaignResult:
    """Record an operation twice, and strike at the selected calls of both recordings.

    Args:
        operation: Its name.
        sandboxes: Where it can be performed, independently of each other.
        record: Performs it undisturbed.
        strike: Performs it and strikes at the given call; `tries` counts the attempts.
        selection: Which calls are struck, and the golden list that the recordings must match.
    """
    began = time.monotonic()
    result = CampaignResult(operation)
    recordings = await _record_all(sandboxes, record)
    _add_recordings(result, recordings, selection)
    queue = list(reversed(result.selected))
    await asyncio.gather(*(_strike_queue(each, strike, result, queue) for each in sandboxes))
    if result.missed:
        _drop_chance_points(result, await _record_all(sandboxes, record))
    result.seconds = time.monotonic() - began
    return result


async def _record_all(
    sandboxes: Sequence[S], record: Callable[[S], Awaitable[Recording]]
) -> list[Recording]:
    """Record `RECORDINGS` times, shared among the sandboxes."""

    async def some(sandbox: S, count: int) -> list[Recording]:
        return [await record(sandbox) for _ in range(count)]

    shares = [len(range(index, RECORDINGS, len(sandboxes))) for index in range(len(sandboxes))]
    done = await asyncio.gather(*map(some, sandboxes, shares))
    return [recording for each in done for recording in each]


def _add_recordings(
    result: CampaignResult, recordings: Sequence[Recording], selection: Selection
) -> None:
    seen: set[KillPoint] = set()
    for recording in recordings:
        result.others |= recording.others
        for point, place in recording.points:
            if point not in seen:
                seen.add(point)
                is_selected = selection.includes(result.operation, point)
                result.rows.append(PointResult(point, place, recording.root, is_selected))
    points = [[point for point, _ in recording.points] for recording in recordings]
    result.differences = selection.golden.differences(result.operation, points)
    result.differences += selection.unstruck(
        (row.point for row in result.rows), (row.point for row in result.selected)
    )
    result.recorded = golden_points.text_of(result.operation, points[0])


def _drop_chance_points(result: CampaignResult, recordings: Sequence[Recording]) -> None:
    """Remove calls that no later run made, and that not every new recording has either.

    They happen on a busy machine, as when a plugin makes its socket again because it was not
    answered in time, or when one request more is sent while it waits.
    """
    usual = set.intersection(
        *({point for point, _ in recording.points} for recording in recordings)
    )
    chance = [row for row in result.missed if row.point not in usual]
    result.rows = [row for row in result.rows if row not in chance]
    result.others.update({f"once, by chance: {row.point.target}": 1 for row in chance})


async def _strike_queue(
    sandbox: S,
    strike: Callable[[S, PointResult], Awaitable[StrikeResult]],
    result: CampaignResult,
    queue: list[PointResult],
) -> None:
    """Strike at calls from the queue, and put those back that were missed."""
    by_point = {row.point: row for row in result.rows}
    while queue:
        row = queue.pop()
        if row.is_hit:
            continue
        row.tries += 1
        struck = await strike(sandbox, row)
        hit = by_point.get(struck.hit) if struck.hit else None
        if hit is not None:
            hit.is_hit = True
        judged = hit or row
        if judged.is_correct and (hit or not struck.is_correct):
            judged.outcome, judged.is_correct = struck.outcome, struck.is_correct
        if not row.is_hit:
            row.misses.append(str(struck.hit or struck.end))
            row.place = struck.next_place or row.place
            if row.tries < MAX_TRIES:
                queue.insert(0, row)
