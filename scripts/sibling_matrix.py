# SPDX-License-Identifier: Apache-2.0
"""With which versions of nvdra-api and nvdra-cdi a component may be installed, by its ranges.

Tried out are the oldest and the newest that they admit: what works with both ends works between
them, as far as can be told without all. Versions are those in docs/releases.md and the tree's own.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version


class Combination(NamedTuple):
    """A component, and the versions of its siblings."""

    component: str
    siblings: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return " ".join([self.component, *(f"{name}=={there}" for name, there in self.siblings)])


class NothingAdmittedError(Exception):
    """A range admits no version that exists, so the component cannot be installed."""


def ranges(pyproject: Path) -> dict[str, SpecifierSet]:
    """Sibling → the versions that a component's pyproject.toml admits."""
    lines = tomllib.loads(pyproject.read_text())["project"].get("dependencies", ())
    found = [Requirement(line) for line in lines]
    return {each.name: each.specifier for each in found if each.name.startswith("nvdra-")}


def combinations(
    component: str, admitted: Mapping[str, SpecifierSet], known: Mapping[str, Sequence[str]]
) -> list[Combination]:
    """The oldest versions together, and the newest together; one combination if they are the same.

    Args:
        component: Its name.
        admitted: Its ranges.
        known: Sibling → all versions of it.

    Raises:
        NothingAdmittedError: A range admits none of them.
    """
    ends: dict[str, tuple[str, str]] = {}
    for sibling, specifier in admitted.items():
        there = sorted((each for each in known[sibling] if each in specifier), key=Version)
        if not there:
            raise NothingAdmittedError(
                f"{component} needs {sibling}{specifier}, and there are only "
                f"{', '.join(known[sibling])}: widen the range in its pyproject.toml"
            )
        ends[sibling] = there[0], there[-1]
    found = [
        Combination(component, tuple((name, end[which]) for name, end in sorted(ends.items())))
        for which in (0, 1)
    ]
    return found[:1] if found[0] == found[1] else found
