# SPDX-License-Identifier: Apache-2.0
"""Which MIG devices a GPU has room for, according to NVIDIA's documentation.

The tables and their sources are in `mig_tables.yaml`. Neither the simulated NVML nor the driver
uses them.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple

from nvdra_testing import yaml_documents

_ENGINES: Final = ("nvdec", "nvenc", "jpeg", "ofa", "copy")


class Place(NamedTuple):
    """A MIG device, or where one can be.

    Attributes:
        profile: Such as `1g.10gb+me`.
        start: The first memory slice.
    """

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class _Profile:
    """A row of a table.

    Attributes:
        size: Memory slices.
        sm_slices: Of the GPU's SMs.
        engines: How many of each; without those that the table does not count.
        instances: How many there can be at once.
    """

    starts: tuple[int, ...]
    size: int
    sm_slices: int
    engines: Mapping[str, int]
    instances: int


@dataclass(frozen=True, slots=True)
class MigOracle:
    """The tables of one GPU.

    Attributes:
        profiles: The rows by the name of the profile; the last one has all of the GPU.
    """

    profiles: Mapping[str, _Profile]

    @classmethod
    def of(cls, gpu: str) -> "MigOracle":
        """The tables of a GPU, one of `gpus()`."""
        document = _document()
        entry = document["gpus"][gpu]
        rows = entry.get("profiles") or {
            entry["names"][name]: row
            for name, row in document["gpus"][entry["like"]]["profiles"].items()
        }
        shapes = document["placements"][entry["placements"]]
        return cls({name: _profile(row, shapes) for name, row in rows.items()})

    @property
    def places(self) -> frozenset[Place]:
        """Where MIG devices can be on an empty GPU."""
        rows = self.profiles.items()
        return frozenset(Place(name, start) for name, row in rows for start in row.starts)

    def has_room(self, existing: Collection[Place], wanted: Place) -> bool:
        """Whether a MIG device can be made beside those that exist.

        It needs memory slices that are free, an instance of its profile that is available, and as
        many SM slices and engines as are left of those that the whole GPU has.
        """
        together = [*existing, wanted]
        if wanted not in self.places or self._overlaps(existing, wanted):
            return False
        row = self.profiles[wanted.profile]
        if Counter(each.profile for each in together)[wanted.profile] > row.instances:
            return False
        rows = [self.profiles[each.profile] for each in together]
        whole = list(self.profiles.values())[-1]
        if sum(each.sm_slices for each in rows) > whole.sm_slices:
            return False
        return all(
            sum(each.engines[engine] for each in rows) <= count
            for engine, count in whole.engines.items()
        )

    def _overlaps(self, existing: Collection[Place], wanted: Place) -> bool:
        taken = {slice_ for each in existing for slice_ in self._slices(each)}
        return not taken.isdisjoint(self._slices(wanted))

    def _slices(self, place: Place) -> range:
        return range(place.start, place.start + self.profiles[place.profile].size)


def gpus() -> tuple[str, ...]:
    """The GPUs that there are tables of."""
    return tuple(_document()["gpus"])


def _profile(row: Mapping[str, Any], shapes: Mapping[str, Any]) -> _Profile:
    shape = shapes[row["place"]]
    sm_slices, *engines, instances = row["has"]
    counted = {
        name: count for name, count in zip(_ENGINES, engines, strict=True) if count is not None
    }
    return _Profile(tuple(shape["starts"]), shape["size"], sm_slices, counted, instances)


def _document() -> Any:
    return yaml_documents.load((files(__package__) / "mig_tables.yaml").read_text())
