# SPDX-License-Identifier: Apache-2.0
"""The results of campaigns as a page of text: the calls recorded and hit, and each outcome."""

from collections.abc import Iterable

from nvdra_testing.crash_campaigns.outcomes import CampaignResult, PointResult

_HEAD = ("call", "on", "no.", "thread", "killed in run", "outcome")

_INTRODUCTION = """\
# Killed at every call

The process is killed (SIGKILL) on the way into each call with which it changes something outside of
itself; where the call is `answered`, it is killed after the call and before it has read the answer.
Then it starts again, and the caller repeats its request. A leader that is told to end gets SIGTERM
in the call; another replica takes over.
"""


def page(results: Iterable[CampaignResult]) -> str:
    """Every operation, in the order of its calls."""
    parts = [_INTRODUCTION]
    for each in results:
        parts += [summary(each), "", *_differences(each), *_table(each.selected), ""]
        parts += [*_others(each), ""]
    return "\n".join(parts)


def summary(result: CampaignResult) -> str:
    """One line with the numbers that must agree."""
    selected, hit = len(result.selected), sum(row.is_hit for row in result.selected)
    counts = f"{len(result.rows)} calls recorded, {selected} selected"
    if hit < selected:
        return f"## {result.operation}: {counts}, ONLY {hit} hit"
    wrong = len(result.incorrect)
    outcome = f"{hit} hit, {wrong} wrong outcomes, {result.seconds:.0f} s"
    return f"## {result.operation}: {counts}, {outcome}"


def _differences(result: CampaignResult) -> list[str]:
    if not result.differences:
        return []
    return [
        "The recordings differ from the golden list:",
        *(f"- {each}" for each in result.differences),
        "This is what was recorded, in the form of the list:",
        "",
        result.recorded,
        "",
    ]


def _table(rows: Iterable[PointResult]) -> list[str]:
    lines = [
        (
            row.point.call,
            row.point.target,
            str(row.point.nth),
            row.place.thread,
            str(row.tries) if row.is_hit else f"never in {row.tries}",
            ("" if row.is_correct else "WRONG: ") + row.outcome
            if row.outcome
            else f"instead: {'; '.join(row.misses)}",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (_HEAD, *lines)) for column in range(5)]
    return [
        "  ".join(
            (*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[5])
        )
        for line in (_HEAD, *lines)
    ]


def _others(result: CampaignResult) -> list[str]:
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(result.others.items()))
    return [f"Also recorded, and changing nothing but the process itself: {counts}."]
