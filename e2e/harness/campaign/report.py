"""What a campaign found, as a page of text: calls recorded, calls hit, and the outcome of each."""

from collections.abc import Iterable

from campaign.outcomes import Campaign, Row

_HEAD = ("call", "on", "no.", "thread", "killed in run", "outcome")


def page(campaigns: Iterable[Campaign]) -> str:
    """Every operation, in the order of its calls."""
    parts = [_INTRODUCTION]
    for each in campaigns:
        parts += [summary(each), "", *_table(each.rows), "", *_others(each), ""]
    return "\n".join(parts)


def summary(campaign: Campaign) -> str:
    """One line: the counts that must agree."""
    hit = sum(row.is_hit for row in campaign.rows)
    return (
        f"## {campaign.operation}: {len(campaign.rows)} calls recorded = {hit} calls hit, "
        f"{len(campaign.wrong)} wrong outcomes, {campaign.seconds:.0f} s"
        if hit == len(campaign.rows)
        else f"## {campaign.operation}: {len(campaign.rows)} calls recorded, ONLY {hit} calls hit"
    )


_INTRODUCTION = """\
# Killed at every call

SIGKILL on the way into each call with which a process changes something outside of itself; where it
says `answered`, after it, before the process has read the answer. Then it starts again, and whoever
waits for it asks again. A leader that is told to end gets SIGTERM in the call; another one follows.
"""


def _table(rows: Iterable[Row]) -> list[str]:
    lines = [
        (
            row.point.call,
            row.point.target,
            str(row.point.nth),
            row.place.thread,
            str(row.tries) if row.is_hit else f"never in {row.tries}",
            ("" if row.is_right else "WRONG: ") + row.outcome
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


def _others(campaign: Campaign) -> list[str]:
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(campaign.others.items()))
    return [f"Recorded as well, and changing nothing but the process itself: {counts}."]
