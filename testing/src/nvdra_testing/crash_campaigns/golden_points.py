# SPDX-License-Identifier: Apache-2.0
"""The golden list of the calls that each operation makes, with which recordings are compared.

A line is `CALL TARGET COUNT`, below the name of its operation. The count is `*` where it differs
from run to run, as that of requests to the API server does.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvdra_testing.crash_campaigns.points import KillPoint

DIRECTORY = Path(__file__).with_name("golden_points")

Calls = Mapping[tuple[str, str], int | None]
"""(call, target) → how often it is made; None where that varies."""

_LINE = re.compile(r"(?P<call>\S+) +(?P<target>.+?) +(?P<count>\d+|\*)")
_BY_CHANCE = re.compile(r"POST \w+/events|PUT team/computedomains/ring/status")
"""Calls that say how things are: on a slow machine there is more to say."""
_VARIES = re.compile(
    r"API server|answer on the |look |PUT team/computedomains/ring/status|POST team/events"
)


@dataclass(frozen=True)
class GoldenPoints:
    """The calls by operation, in the order of the list."""

    operations: Mapping[str, Calls]

    def of(self, operation: str) -> Calls:
        """The calls of one operation; none where the list does not have it."""
        return self.operations.get(operation, {})

    def differences(self, operation: str, recordings: Sequence[Iterable[KillPoint]]) -> list[str]:
        """How recordings of an operation differ from the list; empty when they agree.

        A call that only some of the recordings have is made by chance and is no difference, nor is
        an Event or a status that says what an operation waits for.
        """
        known, counts = self.of(operation), [_counted(points) for points in recordings]
        everywhere = set.intersection(*(set(each) for each in counts))
        anywhere = set.union(*(set(each) for each in counts))
        new = (call for call in sorted(everywhere - set(known)) if not _BY_CHANCE.match(call[1]))
        found = [f"new: {_line(*call)}" for call in new]
        found += [f"no longer made: {_line(*call)}" for call in sorted(set(known) - anywhere)]
        for call, expected in known.items():
            seen = {each[call] for each in counts if call in each}
            if expected is not None and seen and expected not in seen:
                found.append(f"made {sorted(seen)} times: {_line(*call, expected)}")
        return found


def load(name: str) -> GoldenPoints:
    """The list of a component, `golden_points/NAME.txt`."""
    return parse((DIRECTORY / f"{name}.txt").read_text())


def parse(text: str) -> GoldenPoints:
    """A list from its text: `# OPERATION`, then its calls."""
    operations: dict[str, dict[tuple[str, str], int | None]] = {}
    operation = ""
    for line in text.splitlines():
        if line.startswith("# "):
            operation = line.removeprefix("# ")
            operations[operation] = {}
        elif line.strip():
            found = _LINE.fullmatch(line.strip())
            assert found, f"not a line of golden points: {line!r}"
            count = None if found["count"] == "*" else int(found["count"])
            operations[operation][found["call"], found["target"]] = count
    return GoldenPoints(operations)


def text_of(operation: str, points: Iterable[KillPoint]) -> str:
    """A recording as a part of the list, for whoever has to change it."""
    lines = [f"# {operation}"]
    for (call, target), count in _counted(points).items():
        lines.append(_line(call, target, None if _VARIES.match(target) else count))
    return "\n".join(lines)


def _counted(points: Iterable[KillPoint]) -> Counter[tuple[str, str]]:
    return Counter((point.call, point.target) for point in points)


def _line(call: str, target: str, count: int | None = None) -> str:
    return f"{call} {target} {'*' if count is None else count}"
