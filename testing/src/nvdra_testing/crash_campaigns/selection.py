"""Which recorded calls a campaign strikes: all, or the important ones and a third of the others.

`make test` strikes every call that changes a record, a CDI spec or a socket, and the first call of
every kind. Of the other calls it strikes a third, drawn by a seed. `make soak` strikes all calls.
"""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvdra_testing.crash_campaigns.golden_points import GoldenPoints
from nvdra_testing.crash_campaigns.points import KillPoint

KEPT_SEEDS = Path(__file__).with_name("kept_seeds.txt")
SHARE = 1 / 3
"""The share of the less important calls that one seed draws."""

_RECORDS_SPECS_SOCKETS = re.compile(r"state\.sqlite-wal|cdi\b|.*\.sock$|answer on the ")
_WRITE = re.compile(
    r"(?P<verb>POST|PUT|PATCH|DELETE) (?:(?:team|nvdra)/)?"
    r"(?P<resource>\w+)(?:/[^/]+(?P<part>/\w+)?)?"
)


@dataclass(frozen=True)
class Selection:
    """What one run of pytest strikes.

    Attributes:
        golden: The calls that are known to be made, by operation.
        seed: Draws a third of the less important calls; None strikes every call.
        kept: Seeds that have found a fault before, by operation. They are always drawn as well.
    """

    golden: GoldenPoints
    seed: int | None
    kept: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def includes(self, operation: str, point: KillPoint) -> bool:
        """Whether the campaign on an operation strikes at a recorded call."""
        if self.seed is None or _RECORDS_SPECS_SOCKETS.match(point.target):
            return True
        if (point.call, point.target) not in self.golden.of(operation):
            return True
        if point.nth == 1 and self._is_first_of_its_kind(operation, point):
            return True
        seeds = (self.seed, *self.kept.get(operation, ()))
        return any(_is_drawn(seed, operation, point) for seed in seeds)

    def unstruck(self, recorded: Iterable[KillPoint], selected: Iterable[KillPoint]) -> list[str]:
        """Recorded calls that every campaign must strike and this one does not, for its report."""
        struck = set(selected)
        return [
            f"not struck: {point.call} {point.target} no. {point.nth}"
            for point in recorded
            if point not in struck
            and (self.seed is None or _RECORDS_SPECS_SOCKETS.match(point.target))
        ]

    def _is_first_of_its_kind(self, operation: str, point: KillPoint) -> bool:
        """Whether no earlier line of the golden list makes such a call."""
        group = _group(operation)
        for other in self.golden.operations:
            if _group(other) == group:
                for call, target in self.golden.of(other):
                    if (call, kind(target)) == (point.call, kind(point.target)):
                        return (other, call, target) == (operation, point.call, point.target)
        return True


def kind(target: str) -> str:
    """What calls of one kind have in common: for requests the verb and the resource."""
    found = _WRITE.match(target)
    return f"{found['verb']} {found['resource']}{found['part'] or ''}" if found else target


def kept_seeds(text: str) -> dict[str, list[int]]:
    """The seeds of a list with lines `SEED OPERATION  # what it found`."""
    kept: dict[str, list[int]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split(maxsplit=1)
        if words:
            kept.setdefault(words[1].strip(), []).append(int(words[0]))
    return kept


def _group(operation: str) -> str:
    """Operations of one group share their kinds: those of the controller that fail the same way."""
    name, _, failure = operation.partition(", ")
    return failure or name


def _is_drawn(seed: int, operation: str, point: KillPoint) -> bool:
    draw = random.Random(f"{seed} {operation} {point.call} {point.target} {point.nth}")
    return draw.random() < SHARE
