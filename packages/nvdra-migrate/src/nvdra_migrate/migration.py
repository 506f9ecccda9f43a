# SPDX-License-Identifier: Apache-2.0
"""From a values file of the reference's chart to one of the chart nvdra. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nvdra_migrate.near_names import NearNames
from nvdra_migrate.outcomes import Outcome, Status, not_carried, unneeded
from nvdra_migrate.reference_values import REFERENCE_VALUES, ReferenceValue
from nvdra_migrate.rules import Values


@dataclass(frozen=True, slots=True)
class Migration:
    """The result.

    Attributes:
        values: Values of the chart nvdra.
        outcomes: What became of each value, in the order of the file.
    """

    values: dict[str, Any]
    outcomes: tuple[Outcome, ...]

    @property
    def is_complete(self) -> bool:
        """Whether everything was carried, or is not needed."""
        return all(outcome.status is not Status.NOT_CARRIED for outcome in self.outcomes)


def migrate(values: Values, around: Iterable[Outcome] = ()) -> Migration:
    """Carry every value that has a place in the chart nvdra.

    Args:
        values: Values of the reference's chart. They need not be complete.
        around: What became of what was around them in their file.
    """
    near = NearNames(REFERENCE_VALUES)
    own = (
        outcome
        for path, value in _found(values)
        for outcome in _outcomes(path, value, values, near)
    )
    outcomes = (*around, *own)
    carried: dict[str, Any] = {}
    for outcome in outcomes:
        for place, value in outcome.settings.items():
            _set(carried, place.split("."), value)
    return Migration(carried, outcomes)


def _found(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a file: known ones, and the highest paths that the reference does not know."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        is_branch = any(known.startswith(f"{path}.") for known in REFERENCE_VALUES)
        if is_branch and isinstance(value, Mapping):
            yield from _found(value, f"{path}.")
        else:
            yield path, value


def _outcomes(path: str, value: Any, values: Values, near: NearNames) -> Iterable[Outcome]:
    known = REFERENCE_VALUES.get(path)
    if known is not None:
        return _of_known(path, value, known, values)
    if any(each.startswith(f"{path}.") for each in REFERENCE_VALUES):
        return [not_carried(path, f"{value!r} is no map of values", f"leave out {path}")]
    nearest = near.nearest(path)
    remedy = f"did you mean {nearest}?" if nearest else "leave it out: it has had no effect"
    return [not_carried(path, "the reference's chart has no such value", remedy)]


def _of_known(path: str, value: Any, known: ReferenceValue, values: Values) -> Iterable[Outcome]:
    is_default = type(value) is type(known.default) and value == known.default
    if is_default or str(value) == known.default:  # logVerbosity may be a number
        here = f"; here: {known.instead}" if known.instead else ""
        return [unneeded(path, f"it is the default there{here}")]
    return known.rule(path, value, values)


def _set(values: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        values = values.setdefault(key, {})
    values[keys[-1]] = value
