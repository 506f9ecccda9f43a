# SPDX-License-Identifier: Apache-2.0
"""When the status of a ComputeDomain did not say of a node what was true; no cluster here.

Each node is judged alone: the nodes of a domain become Ready in one order and may be told in
another, so that the set that is told was perhaps never true as a whole. Times are monotonic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Change(NamedTuple):
    """Whether a node is Ready from a moment on.

    Attributes:
        at: When a watch showed it. Until then, what was before may be told.
        is_ready: What is so from then on.
        since: When it became so, if the watch showed it later. From then on it may be told.
    """

    at: float
    is_ready: bool
    since: float | None = None


class Away(NamedTuple):
    """A time at which nobody could write a status: the API server or the controller was away."""

    began: float
    ended: float


@dataclass(frozen=True)
class Untruth:
    """A time at which a status told of a node what had not been true for too long.

    Attributes:
        began: When it had not been true for too long.
        seconds: How long it was told from then on.
        told: Whether the status called the node Ready.
    """

    began: float
    seconds: float
    told: bool


def untruths(
    true: Sequence[Change],
    told: Sequence[Change],
    away: Sequence[Away],
    allowed_s: float,
    ended: float,
) -> list[Untruth]:
    """Find when a status told of a node what was true at no moment of the last `allowed_s`.

    Args:
        true: The changes of what was true, in order. Before the first one it was not Ready.
        told: The changes of the status, in order. Before the first one it did not call it Ready.
        away: Times that do not count, in any order.
        allowed_s: How late a status may be.
        ended: When the domain was deleted, or the recording ended.
    """
    end = _counted(ended, away)
    true_spans = _spans(true, away, end)
    found = []
    for is_ready, began, over in _spans(told, away, end):
        covered = began
        for was, true_from, true_until in true_spans:
            if was == is_ready and true_from <= covered < true_until + allowed_s:
                covered = true_until + allowed_s
            elif was == is_ready and covered < true_from < over:
                found.append(Untruth(covered, true_from - covered, is_ready))
                covered = true_until + allowed_s
        if covered < over:
            found.append(Untruth(covered, over - covered, is_ready))
    return found


def _spans(
    changes: Sequence[Change], away: Sequence[Away], end: float
) -> list[tuple[bool, float, float]]:
    """What held from when until when, in counted time. Neighbours overlap: see `Change`."""
    begins = [
        0.0,
        *(_counted(each.at if each.since is None else each.since, away) for each in changes),
    ]
    ends = [*(_counted(each.at, away) for each in changes), end]
    states = [False, *(each.is_ready for each in changes)]
    return list(zip(states, begins, ends, strict=True))


def _counted(moment: float, away: Sequence[Away]) -> float:
    """A moment on a clock that stands still while somebody is away."""
    still, until = 0.0, 0.0
    for each in sorted(away):
        began = max(each.began, until)
        still += max(0.0, min(each.ended, moment) - began)
        until = max(until, each.ended)
    return moment - still
