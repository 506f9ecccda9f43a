# SPDX-License-Identifier: Apache-2.0
"""Which recorded calls a campaign strikes: all, or the important ones and some of the others.

`make test` strikes every call by which a prepare or unprepare changes a record, a CDI spec or a
socket, and the first call of every kind. Of the other calls it strikes a tenth, drawn by a seed.
The plugin's two starts are left to the soak. Of the ComputeDomain plugin, whose records and sockets
are the same code, it strikes each change of a CDI spec, and draws a few others. Of claims that
change hardware it strikes each commit as well, and what lets an MPS daemon start or forbids it; of
those that take a GPU from its driver, each call before which the GPU has none. Of
the IMEX daemon, whose starts are slow, it strikes each signal, lock and change of the hosts file,
and a few others. `make soak` strikes all calls.
"""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvdra_testing.crash_campaigns.golden_points import GoldenPoints
from nvdra_testing.crash_campaigns.points import KillPoint

KEPT_SEEDS = Path(__file__).with_name("kept_seeds.txt")
_WRITE = re.compile(
    r"(?P<verb>POST|PUT|PATCH|DELETE) (?:(?:team|nvdra)/)?"
    r"(?P<resource>\w+)(?:/[^/]+(?P<part>/\w+)?)?"
)


@dataclass(frozen=True)
class Extent:
    """How much of a component one run strikes.

    Attributes:
        always: The calls that every run strikes, as `CALL TARGET`.
        share: The share of the other calls that one seed draws.
        has_first_calls: Whether the first call of each kind is struck, too.
    """

    always: re.Pattern[str]
    share: float
    has_first_calls: bool

    def always_includes(self, point: KillPoint) -> bool:
        """Whether every run strikes at the call."""
        return self.always.match(f"{point.call} {point.target}") is not None


MOST = Extent(
    re.compile(r"\w+ (?:state\.sqlite-wal|cdi\b|.*\.sock$|answer on the )"),
    share=0.1,
    has_first_calls=True,
)
DAEMON = Extent(re.compile(r"(?:kill|fcntl|pwrite64) "), share=0.04, has_first_calls=False)
STEPS = Extent(
    re.compile(
        r"(?:rename|unlink) cdi\b|fdatasync state\.sqlite-wal|(?:mount|umount2|rename) mps/"
    ),
    share=0.1,
    has_first_calls=False,
)
DRIVERS = Extent(
    re.compile(r"write sysfs: \S+ to bus/pci/drivers/\S+/bind"),
    share=0.05,
    has_first_calls=False,
)
"""Before a bind, the GPU has no driver."""
FEW = Extent(re.compile(r"(?:rename|unlink) cdi\b"), share=0.04, has_first_calls=False)


@dataclass(frozen=True)
class Selection:
    """What one run of pytest strikes.

    Attributes:
        golden: The calls that are known to be made, by operation.
        seed: Draws some of the less important calls; None strikes every call.
        kept: Seeds that have found a fault before, by operation. They are always drawn as well.
        extent: How many of the calls a seed selects.
    """

    golden: GoldenPoints
    seed: int | None
    kept: Mapping[str, Sequence[int]] = field(default_factory=dict)
    extent: Extent = MOST

    def includes(self, operation: str, point: KillPoint) -> bool:
        """Whether the campaign on an operation strikes at a recorded call."""
        if self.seed is None or self.extent.always_includes(point):
            return True
        if (point.call, point.target) not in self.golden.of(operation):
            return True
        is_first = point.nth == 1 and self._is_first_of_its_kind(operation, point)
        if is_first and self.extent.has_first_calls:
            return True
        seeds = (self.seed, *self.kept.get(operation, ()))
        return any(_draw(seed, operation, point) < self.extent.share for seed in seeds)

    def unstruck(self, recorded: Iterable[KillPoint], selected: Iterable[KillPoint]) -> list[str]:
        """Recorded calls that every campaign must strike and this one does not, for its report."""
        struck = set(selected)
        return [
            f"not struck: {point.call} {point.target} no. {point.nth}"
            for point in recorded
            if point not in struck and (self.seed is None or self.extent.always_includes(point))
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


def _draw(seed: int, operation: str, point: KillPoint) -> float:
    """A number from 0 to 1 that belongs to the seed and the call."""
    return random.Random(f"{seed} {operation} {point.call} {point.target} {point.nth}").random()
