# SPDX-License-Identifier: Apache-2.0
"""The table of the engine: every state has an action, and every goal is reached."""

import random
from itertools import product
from pathlib import Path

import pytest
from nvdra_runtime.claims.transitions import TABLE, Action, Found, Goal, Recorded, State

DESIGN = Path(__file__).parents[5] / "docs/design.md"
IMPOSSIBLE = {
    # Without a record nothing is known of changes.
    *(State(goal, Recorded.NOTHING, found) for goal in Goal for found in (Found.ALL, Found.OTHER)),
    # There is nothing to undo.
    State(Goal.UNDONE, Recorded.NOTHING, Found.NONE),
    # Undoing does not compare.
    *(State(Goal.UNDONE, it, Found.OTHER) for it in (Recorded.STARTED, Recorded.PREPARED)),
}
MAKING = (Action.BEGIN, Action.RESUME, Action.REPLACE)
MAKING_AGAIN = (Action.RENEW, Action.REPAIR)


def test_every_state_has_one_action_unless_it_cannot_be() -> None:
    states = {State(*parts) for parts in product(Goal, Recorded, Found)}
    assert set(TABLE) == states - IMPOSSIBLE
    assert set(TABLE.values()) == set(Action)


def test_the_design_shows_the_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DESIGN.read_text().splitlines()
        if line.startswith(("| in force |", "| undone |"))
    ]
    assert rows == [
        [*(part.name.lower().replace("_", " ") for part in state), action.name.lower()]
        for state, action in TABLE.items()
    ]


def after(action: Action, recorded: Recorded, *, is_cut_off: bool) -> tuple[Recorded, Found]:
    """The record and what is found after an action, or after a part of it."""
    if action in MAKING:
        return (Recorded.STARTED if is_cut_off else Recorded.PREPARED), Found.ALL
    if action in MAKING_AGAIN:
        return Recorded.PREPARED, Found.OTHER if is_cut_off else Found.ALL
    if action is Action.ANSWER:
        return recorded, Found.ALL
    return (Recorded.STARTED, Found.ALL) if is_cut_off else (Recorded.NOTHING, Found.NONE)


@pytest.mark.parametrize("seed", range(50))
def test_the_goal_is_reached_whatever_happens_in_between(seed: int) -> None:
    draw = random.Random(seed)
    recorded, found = Recorded.NOTHING, Found.NONE
    for _ in range(20):
        goal = draw.choice(list(Goal))
        if goal is Goal.UNDONE and recorded is Recorded.NOTHING:
            continue
        if recorded is not Recorded.NOTHING and draw.random() < 0.2:  # a reboot
            found = Found.NONE
        elif recorded is not Recorded.NOTHING and draw.random() < 0.2:  # another plan, or a loss
            found = Found.OTHER
        for is_cut_off in (draw.random() < 0.5, False):
            if goal is Goal.UNDONE:
                found = Found.ALL if found is Found.OTHER else found
                if recorded is Recorded.NOTHING:
                    break
            action = TABLE[State(goal, recorded, found)]
            recorded, found = after(action, recorded, is_cut_off=is_cut_off)
        if goal is Goal.UNDONE:
            assert recorded is Recorded.NOTHING
        else:
            assert TABLE[State(goal, recorded, found)] is Action.ANSWER
