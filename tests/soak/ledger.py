# SPDX-License-Identifier: Apache-2.0
"""What has passed with which tree: a line of JSON for each run of a part, in the repository."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.soak.parts import Part

RESULTS = Path(__file__).parent / "results.jsonl"
DIRTY = "dirty"
"""In place of a tree: something that the part tests was not committed, or changed meanwhile."""


@dataclass(frozen=True)
class Result:
    """One run of a part.

    Attributes:
        part: Its name.
        commit: The commit that was checked out.
        tree: The hash of what the part tests; `dirty` if it was not committed.
        started: ISO 8601, UTC.
        seconds: How long it took.
        passed: Whether it passed.
        load: The load of the machine over the last 15 minutes, at its end.
    """

    part: str
    commit: str
    tree: str
    started: str
    seconds: float
    passed: bool
    load: float


@dataclass(frozen=True)
class State:
    """Whether a part is due.

    Attributes:
        part: The part.
        last: Its last run.
        why: Why it is due; empty if it is not.
    """

    part: Part
    last: Result | None
    why: str


def read(path: Path = RESULTS) -> list[Result]:
    """All results, oldest first."""
    if not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def append(result: Result, path: Path = RESULTS) -> None:
    """Add a result."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def states(
    parts: Sequence[Part], results: Iterable[Result], trees: Mapping[str, str]
) -> list[State]:
    """Which parts are due.

    Args:
        parts: The parts.
        results: Oldest first.
        trees: Part → the hash of what it tests now, or `dirty`.
    """
    of_part: dict[str, list[Result]] = {}
    for result in results:
        of_part.setdefault(result.part, []).append(result)
    found = []
    for part in parts:
        runs = of_part.get(part.name, [])
        tree = trees[part.name]
        last = runs[-1] if runs else None
        same = [each for each in runs if each.tree == tree != DIRTY]
        if last is None:
            why = "has not run"
        elif same:
            why = "" if same[-1].passed else "failed"
        elif tree == DIRTY:
            why = "what it tests has changes that are not committed"
        else:
            why = "what it tests has changed"
        if last is not None and not same and not last.passed:
            why = f"failed; {why}"
        found.append(State(part, last, why))
    return found


def text(found: Sequence[State]) -> str:
    """A table."""
    lines = [f"{'PART':<15} {'STATE':<10} {'LAST RUN':<17} {'COMMIT':<9} {'TOOK':>7}  WHY OR WHAT"]
    for state in found:
        last = state.last
        label = "due" if state.why else "passed"
        took = f"{int(last.seconds // 60)} min" if last else f"~{state.part.minutes} min"
        when = last.started[:16].replace("T", " ") if last else "-"
        commit = last.commit[:8] if last else "-"
        lines.append(
            f"{state.part.name:<15} {label:<10} {when:<17} {commit:<9} {took:>7}  "
            f"{state.why or state.part.about}"
        )
    due = [each for each in found if each.why]
    minutes = sum(each.last.seconds / 60 if each.last else each.part.minutes for each in due)
    lines.append(f"{len(due)} of {len(found)} parts are due, about {minutes / 60:.1f} h")
    return "\n".join(lines)


def document(found: Sequence[State]) -> list[dict[str, object]]:
    """The same for programs."""
    return [
        {
            "part": each.part.name,
            "about": each.part.about,
            "command": list(each.part.command),
            "due": bool(each.why),
            "why": each.why,
            "last": asdict(each.last) if each.last else None,
        }
        for each in found
    ]
