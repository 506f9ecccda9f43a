# SPDX-License-Identifier: Apache-2.0
"""The errors of configuration files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError


@dataclass(frozen=True)
class Problem:
    """One problem. `path` is its place in the file, with dots, or empty for the whole file."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ValueError):
    """A node or cluster file is invalid."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    @classmethod
    def raise_for(cls, problems: Sequence[Problem]) -> None:
        """Raises the error if there are problems."""
        if problems:
            raise cls(problems)

    @classmethod
    def from_validation(cls, error: ValidationError, prefix: str = "") -> ConfigError:
        """Converts all errors of pydantic, with paths from the root of the file."""
        return cls(
            [
                Problem(
                    ".".join([*([prefix] if prefix else []), *(str(part) for part in item["loc"])]),
                    item["msg"],
                )
                for item in error.errors()
            ]
        )


def duplicates(path: str, values: Iterable[object], places: Iterable[object]) -> list[Problem]:
    """One problem for each repeated value. `{}` in `path` is replaced with its place."""
    first: dict[object, object] = {}
    problems = []
    for value, place in zip(values, places, strict=True):
        if value in first:
            problems.append(
                Problem(path.format(place), f"{value} is already used by {first[value]}")
            )
        first.setdefault(value, place)
    return problems
