# SPDX-License-Identifier: Apache-2.0
"""What is to be done for a claim next, as a table: from its record and the goal to an action.

docs/design.md, "The engine", shows it.
"""

from enum import Enum, auto
from typing import Final, NamedTuple


class Goal(Enum):
    """What a claim is to be."""

    IN_FORCE = auto()
    """Every change is in force, and the record is an answer."""
    UNDONE = auto()
    """No change is in force, and there is no record."""


class Recorded(Enum):
    """What the state file says of a claim."""

    NOTHING = auto()
    STARTED = auto()
    """Changes are being made or undone, or were left when the claim ended: it is no answer."""
    PREPARED = auto()


class Found(Enum):
    """What is found of the changes that the record names."""

    ALL = auto()
    """Started: those that are wanted now, as far as they were made. Prepared: all are in force."""
    OTHER = auto()
    """Started: other ones than are wanted now. Prepared: some are gone."""
    NONE = auto()
    """The record is of an earlier boot, which has ended all of them."""


class Action(Enum):
    """What the engine does."""

    BEGIN = auto()
    """Look at what is there, record the claim as started, make the changes."""
    RESUME = auto()
    """Make the changes that are missing; what the earlier attempt has found is still to restore."""
    REPLACE = auto()
    """Undo the changes, then begin."""
    RENEW = auto()
    """Make the changes again that a reboot has ended."""
    REPAIR = auto()
    """Make those again that are gone, if their places are free."""
    ANSWER = auto()
    """All is as it should be."""
    REVERT = auto()
    """Undo the changes, the last one first."""
    FORGET = auto()
    """Remove the claim's files and record."""


class State(NamedTuple):
    """Goal, record and what was found."""

    goal: Goal
    recorded: Recorded
    found: Found


TABLE: Final = {
    State(Goal.IN_FORCE, Recorded.NOTHING, Found.NONE): Action.BEGIN,
    State(Goal.IN_FORCE, Recorded.STARTED, Found.NONE): Action.BEGIN,
    State(Goal.IN_FORCE, Recorded.STARTED, Found.ALL): Action.RESUME,
    State(Goal.IN_FORCE, Recorded.STARTED, Found.OTHER): Action.REPLACE,
    State(Goal.IN_FORCE, Recorded.PREPARED, Found.NONE): Action.RENEW,
    State(Goal.IN_FORCE, Recorded.PREPARED, Found.OTHER): Action.REPAIR,
    State(Goal.IN_FORCE, Recorded.PREPARED, Found.ALL): Action.ANSWER,
    State(Goal.UNDONE, Recorded.STARTED, Found.NONE): Action.FORGET,
    State(Goal.UNDONE, Recorded.PREPARED, Found.NONE): Action.FORGET,
    State(Goal.UNDONE, Recorded.STARTED, Found.ALL): Action.REVERT,
    State(Goal.UNDONE, Recorded.PREPARED, Found.ALL): Action.REVERT,
}
"""Undoing does not ask what is in force: each kind finds out what is left of a change."""
