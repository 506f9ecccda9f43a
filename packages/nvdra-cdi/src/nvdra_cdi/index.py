# SPDX-License-Identifier: Apache-2.0
"""Index the devices of loaded specs by name, with priorities and conflicts.

A device in a directory of higher priority hides one with the same name. If the directory of the
highest priority that has a name defines it twice, this is a conflict, and the name cannot be
resolved (docs/reference/cdi.md §7).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nvdra_cdi import names
from nvdra_cdi.errors import ConflictError
from nvdra_cdi.model import Device, Spec


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A spec and the file that it was loaded from.

    Attributes:
        spec: The document.
        path: The path of the file.
        priority: The index of its directory in the list of directories. The highest wins.
    """

    spec: Spec
    path: str
    priority: int

    @property
    def vendor(self) -> str:
        """The part of the kind before the slash."""
        return names.parse_qualifier(self.spec.kind)[0]

    @property
    def class_(self) -> str:
        """The part of the kind after the slash."""
        return names.parse_qualifier(self.spec.kind)[1]


@dataclass(frozen=True, slots=True)
class CachedDevice:
    """A device with the spec that defines it."""

    device: Device
    spec: LoadedSpec

    @property
    def qualified_name(self) -> str:
        """The name that containers request: `vendor/class=device`."""
        return f"{self.spec.spec.kind}={self.device.name}"


@dataclass(frozen=True, slots=True)
class Index:
    """The devices and conflicts of a set of specs.

    Attributes:
        devices: The devices that can be resolved, by qualified name.
        specs: All specs by vendor, in the order given.
        conflicts: The conflicts by file, one error for each conflicting definition.
    """

    devices: Mapping[str, CachedDevice]
    specs: Mapping[str, tuple[LoadedSpec, ...]]
    conflicts: Mapping[str, tuple[ConflictError, ...]]


def build(loaded: Iterable[LoadedSpec]) -> Index:
    """The index of these specs, in any order."""
    specs: dict[str, list[LoadedSpec]] = {}
    defined: dict[str, dict[int, list[CachedDevice]]] = {}
    for spec in loaded:
        specs.setdefault(spec.vendor, []).append(spec)
        for device in spec.spec.devices:
            found = CachedDevice(device, spec)
            by_priority = defined.setdefault(found.qualified_name, {})
            by_priority.setdefault(spec.priority, []).append(found)
    devices: dict[str, CachedDevice] = {}
    conflicts: dict[str, list[ConflictError]] = {}
    for name, by_priority in defined.items():
        highest = by_priority[max(by_priority)]
        if len(highest) == 1:
            devices[name] = highest[0]
        for first, *others in by_priority.values():
            for other in others:
                error = _conflict(name, first.spec.path, other.spec.path)
                for path in dict.fromkeys((other.spec.path, first.spec.path)):
                    conflicts.setdefault(path, []).append(error)
    return Index(
        devices,
        {vendor: tuple(each) for vendor, each in specs.items()},
        {path: tuple(each) for path, each in conflicts.items()},
    )


def _conflict(name: str, first: str, second: str) -> ConflictError:
    return ConflictError(
        f'conflicting device "{name}" (specs "{first}", "{second}"): remove it from one of them'
    )
