# SPDX-License-Identifier: Apache-2.0
"""What changed between two looks at the spec directories."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nvdra_cdi.cache import Cache
from nvdra_cdi.index import CachedDevice


@dataclass(frozen=True)
class Seen:
    """The devices by name and the errors by path, as one look found them."""

    devices: Mapping[str, CachedDevice]
    errors: Mapping[str, str]


@dataclass(frozen=True)
class Change:
    """One change.

    Attributes:
        what: A device was added, changed or removed; a file or directory has an error or was fixed.
        name: The device, or empty.
        path: The spec that defines or defined the device, or the file or directory.
        text: The error, or empty.
    """

    what: Literal["added", "changed", "removed", "error", "fixed"]
    name: str = ""
    path: str = ""
    text: str = ""


def look(cache: Cache) -> Seen:
    """What the directories contain now."""
    errors = {
        path: "; ".join(str(error).removeprefix(f"{path}: ") for error in errors)
        for path, errors in cache.get_errors().items()
    }
    return Seen(cache.get_devices(), errors)


def between(old: Seen, new: Seen) -> list[Change]:
    """The changes, those of devices first, by name."""
    changes: list[Change] = []
    for name in sorted(old.devices.keys() | new.devices.keys()):
        before, after = old.devices.get(name), new.devices.get(name)
        if after is None:
            changes.append(Change("removed", name, before.spec.path if before else ""))
        elif before is None:
            changes.append(Change("added", name, after.spec.path))
        elif _content(before) != _content(after):
            changes.append(Change("changed", name, after.spec.path))
    for path in sorted(old.errors.keys() | new.errors.keys()):
        text = new.errors.get(path)
        if text is None:
            changes.append(Change("fixed", path=path))
        elif text != old.errors.get(path):
            changes.append(Change("error", path=path, text=text))
    return changes


def _content(found: CachedDevice) -> tuple[object, ...]:
    return found.device, found.spec.path, found.spec.spec.container_edits
