"""What can be wrong with a description of hardware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; `path` is its place in the file, with dots, empty for the file."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ValueError):
    """A node or cluster file that describes nothing we can simulate."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    @classmethod
    def raise_for(cls, problems: Sequence[Problem]) -> None:
        """Raises when there are problems."""
        if problems:
            raise cls(problems)

    @classmethod
    def from_validation(cls, error: ValidationError, prefix: str = "") -> ConfigError:
        """Every error of pydantic, with the path from the file's root."""
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
    """A problem for every value that an earlier place has too; `path` has `{}` for the place."""
    first: dict[object, object] = {}
    problems = []
    for value, place in zip(values, places, strict=True):
        if value in first:
            problems.append(Problem(path.format(place), f"{value} is also {first[value]}'s"))
        first.setdefault(value, place)
    return problems
