"""When the status of a ComputeDomain did not say what was true; no cluster here.

What is true is which daemons' pods are Ready; what is told is which nodes the status calls Ready.
Times are monotonic seconds, at which a watch showed the change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Nodes = frozenset[str]
NOBODY: Nodes = frozenset()


class Change(NamedTuple):
    """Which nodes are Ready from a moment on."""

    at: float
    nodes: Nodes


class Away(NamedTuple):
    """A time at which nobody could write a status: the API server or the controller was away."""

    began: float
    ended: float


@dataclass(frozen=True)
class Untruth:
    """A time at which a status told what had not been true for too long.

    Attributes:
        began: When it had not been true for too long.
        seconds: How long it was told from then on.
        told: The nodes that the status called Ready.
        true: The nodes that were Ready meanwhile, at one moment of it.
    """

    began: float
    seconds: float
    told: Nodes
    true: Nodes


def untruths(
    true: Sequence[Change],
    told: Sequence[Change],
    away: Sequence[Away],
    allowed_s: float,
    ended: float,
) -> list[Untruth]:
    """Find when a status told what had not been true at any moment of the last `allowed_s`.

    Args:
        true: The changes of what was true, in order. Before the first one nobody was Ready.
        told: The changes of the status, in order. Before the first one it called nobody Ready.
        away: Times that do not count, in any order.
        allowed_s: How late a status may be.
        ended: When the domain was deleted, or the recording ended.
    """
    end = _counted(ended, away)
    true_spans = _spans(true, away, end)
    found = []
    for nodes, began, over in _spans(told, away, end):
        covered = began
        for was, true_from, true_until in true_spans:
            if was == nodes and true_from <= covered < true_until + allowed_s:
                covered = true_until + allowed_s
            elif was == nodes and covered < true_from < over:
                found.append(Untruth(covered, true_from - covered, nodes, _at(true_spans, covered)))
                covered = true_until + allowed_s
        if covered < over:
            found.append(Untruth(covered, over - covered, nodes, _at(true_spans, over)))
    return found


def _spans(
    changes: Sequence[Change], away: Sequence[Away], end: float
) -> list[tuple[Nodes, float, float]]:
    """What held from when until when, in counted time."""
    moments = [(NOBODY, 0.0), *((each.nodes, _counted(each.at, away)) for each in changes)]
    ends = [*(began for _, began in moments[1:]), end]
    return [(nodes, began, over) for (nodes, began), over in zip(moments, ends, strict=True)]


def _counted(moment: float, away: Sequence[Away]) -> float:
    """A moment on a clock that stands still while somebody is away."""
    still, until = 0.0, 0.0
    for each in sorted(away):
        began = max(each.began, until)
        still += max(0.0, min(each.ended, moment) - began)
        until = max(until, each.ended)
    return moment - still


def _at(spans: Sequence[tuple[Nodes, float, float]], moment: float) -> Nodes:
    return next((nodes for nodes, began, over in spans if began <= moment <= over), NOBODY)
