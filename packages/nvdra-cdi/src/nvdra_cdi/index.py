"""Loaded specs to the devices that containers can ask for: priorities and conflicts.

A device of a higher directory hides one of the same name below. Two of one directory are a
conflict, and while that directory is the highest that has the name, nobody can ask for it
(spec/cdi.md §7).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nvdra_cdi import names
from nvdra_cdi.errors import ConflictError
from nvdra_cdi.model import Device, Spec


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A spec with its place.

    Attributes:
        spec: The document.
        path: Its file.
        priority: The place of its directory among those configured; higher wins.
    """

    spec: Spec
    path: str
    priority: int

    @property
    def vendor(self) -> str:
        """The part of its kind before the slash."""
        return names.parse_qualifier(self.spec.kind)[0]

    @property
    def class_(self) -> str:
        """The part of its kind behind the slash."""
        return names.parse_qualifier(self.spec.kind)[1]


@dataclass(frozen=True, slots=True)
class CachedDevice:
    """A device with the spec that defines it."""

    device: Device
    spec: LoadedSpec

    @property
    def qualified_name(self) -> str:
        """What containers ask for: `vendor/class=device`."""
        return f"{self.spec.spec.kind}={self.device.name}"


@dataclass(frozen=True, slots=True)
class Index:
    """What a set of specs offers.

    Attributes:
        devices: By qualified name, those that can be asked for.
        specs: By vendor, all of them in the order given.
        conflicts: By file, one error for each definition that meets another one.
    """

    devices: Mapping[str, CachedDevice]
    specs: Mapping[str, tuple[LoadedSpec, ...]]
    conflicts: Mapping[str, tuple[ConflictError, ...]]


def build(loaded: Iterable[LoadedSpec]) -> Index:
    """The index of these specs, whatever their order; of one priority the first is met first."""
    specs: dict[str, list[LoadedSpec]] = {}
    defined: dict[str, dict[int, list[CachedDevice]]] = {}
    for spec in loaded:
        specs.setdefault(spec.vendor, []).append(spec)
        for device in spec.spec.devices:
            found = CachedDevice(device, spec)
            by_priority = defined.setdefault(found.qualified_name, {})
            by_priority.setdefault(spec.priority, []).append(found)
    devices: dict[str, CachedDevice] = {}
    conflicts: dict[str, tuple[ConflictError, ...]] = {}
    for name, by_priority in defined.items():
        highest = by_priority[max(by_priority)]
        if len(highest) == 1:
            devices[name] = highest[0]
        for first, *others in by_priority.values():
            for other in others:
                error = _conflict(name, first.spec.path, other.spec.path)
                for path in dict.fromkeys((other.spec.path, first.spec.path)):
                    conflicts[path] = (*conflicts.get(path, ()), error)
    return Index(devices, {vendor: tuple(each) for vendor, each in specs.items()}, conflicts)


def _conflict(name: str, first: str, second: str) -> ConflictError:
    return ConflictError(
        f'conflicting device "{name}" (specs "{first}", "{second}"): remove it from one of them'
    )
