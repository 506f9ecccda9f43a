# SPDX-License-Identifier: Apache-2.0
"""What was carried and what not: a table for people, JSON for programs. Pure."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from nvdra_migrate.migration import Migration
from nvdra_migrate.outcomes import Outcome, Status

_WIDTH = 100
_IMAGES = (
    "Before you install: push the images of nvdra, and set global.imageRegistry. "
    "No old value says where they are."
)


def table(migration: Migration, *, shows_all: bool = False) -> str:
    """What a reader has to look at, then how much there is besides.

    Args:
        migration: The result.
        shows_all: Also list what was carried as it is and what is not needed.
    """
    lines: list[str] = []
    for title, chosen in _groups(migration, shows_all=shows_all).items():
        if chosen:
            lines += [title, *(line for each in chosen for line in _entry(each)), ""]
    return "\n".join([*lines, _summary(migration, shows_all=shows_all), _IMAGES, ""])


def _groups(migration: Migration, *, shows_all: bool) -> dict[str, list[Outcome]]:
    by_status: dict[Status, list[Outcome]] = {status: [] for status in Status}
    for outcome in migration.outcomes:
        by_status[outcome.status].append(outcome)
    groups = {
        "NOT CARRIED": by_status[Status.NOT_CARRIED],
        "CARRIED WITH A CHANGE": [each for each in by_status[Status.CARRIED] if each.reason],
    }
    if shows_all:
        groups["CARRIED"] = [each for each in by_status[Status.CARRIED] if not each.reason]
        groups["NOT NEEDED"] = by_status[Status.UNNEEDED]
    return groups


def _entry(outcome: Outcome) -> Iterator[str]:
    yield f"  {outcome.path}"
    facts = {
        "to": ", ".join(outcome.settings),
        "why": outcome.reason,
        "do": outcome.remedy,
    }
    for word, text in facts.items():
        if text:
            yield textwrap.fill(
                text,
                _WIDTH,
                initial_indent=f"    {word + ':':5}",
                subsequent_indent=" " * 9,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _summary(migration: Migration, *, shows_all: bool) -> str:
    number = {
        status: sum(outcome.status is status for outcome in migration.outcomes) for status in Status
    }
    text = (
        f"{number[Status.CARRIED]} carried, {number[Status.UNNEEDED]} not needed, "
        f"{number[Status.NOT_CARRIED]} not carried."
    )
    return text if shows_all else f"{text} --all lists every value."


def document(migration: Migration, sources: Sequence[str]) -> dict[str, Any]:
    """The same for programs: `values` and `outcomes`.

    Args:
        migration: The result.
        sources: The part of each file that was read.
    """
    return {
        "sources": list(sources),
        "values": migration.values,
        "complete": migration.is_complete,
        "outcomes": [
            {
                "path": outcome.path,
                "status": outcome.status.value,
                "places": list(outcome.settings),
                "reason": outcome.reason,
                "remedy": outcome.remedy,
            }
            for outcome in migration.outcomes
        ],
    }
