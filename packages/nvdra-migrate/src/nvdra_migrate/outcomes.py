# SPDX-License-Identifier: Apache-2.0
"""What becomes of one value of a values file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Whether a value needs attention."""

    CARRIED = "carried"
    UNNEEDED = "unneeded"
    NOT_CARRIED = "not carried"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one value.

    Attributes:
        path: Where it is in the reference's chart, with dots. An item of a map or a list has its
            own outcome: `featureGates.MPSSupport`.
        status: `CARRIED`, `UNNEEDED` if the chart nvdra does the same without it, or `NOT_CARRIED`.
        settings: What it sets in the chart nvdra, by dotted path.
        reason: Why it is not carried or not needed, or what is different afterwards. One sentence,
            without a full stop; empty for a value that is carried as it is.
        remedy: What to do about a value that is not carried. An imperative, without a full stop.
    """

    path: str
    status: Status
    settings: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    remedy: str = ""


def carried(path: str, settings: Mapping[str, Any], remark: str = "") -> Outcome:
    """A value with a place in the chart nvdra."""
    return Outcome(path, Status.CARRIED, settings, remark)


def unneeded(path: str, reason: str) -> Outcome:
    """A value without which the chart nvdra does the same."""
    return Outcome(path, Status.UNNEEDED, reason=reason)


def not_carried(path: str, reason: str, remedy: str) -> Outcome:
    """A value without a place in the chart nvdra."""
    return Outcome(path, Status.NOT_CARRIED, reason=reason, remedy=remedy)
