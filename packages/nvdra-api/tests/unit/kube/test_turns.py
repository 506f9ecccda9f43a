# SPDX-License-Identifier: Apache-2.0
"""Groups take turns, however many items one of them has."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_runtime.kube.turns import Turns

GROUPS = st.lists(st.sampled_from("abcd"), max_size=60)


def taken(turns: Turns[str]) -> str:
    return "".join(turns.take() for _ in range(len(turns)))


def test_who_has_few_items_does_not_wait_for_who_has_many() -> None:
    turns = Turns[str]()
    for _ in range(6):
        turns.add("many", "m")
    turns.add("few", "f")
    turns.add("few", "f")
    assert taken(turns) == "mfmfmmmm"


def test_one_group_is_served_in_order() -> None:
    turns = Turns[str]()
    for item in "abc":
        turns.add("group", item)
    assert taken(turns) == "abc"


def test_a_group_that_comes_again_and_again_keeps_none_from_its_turn() -> None:
    turns = Turns[str]()
    turns.add("often", "o")
    turns.add("rare", "r")
    served = []
    for _ in range(4):
        served.append(turns.take())
        turns.add("often", "o")
    assert served == ["o", "r", "o", "o"]


def test_what_waits_no_longer_gets_no_turn() -> None:
    turns = Turns[str]()
    turns.add("a", "gone")
    turns.add("b", "stays")
    turns.remove("a", "gone")
    turns.remove("a", "gone")
    turns.remove("b", "never was")
    assert taken(turns) == "stays"
    with pytest.raises(LookupError):
        turns.take()


@given(GROUPS)
def test_an_item_waits_for_at_most_one_of_each_other_group_per_item_of_its_own(
    groups: list[str],
) -> None:
    turns = Turns[tuple[str, int]]()
    numbers: Counter[str] = Counter()
    for group in groups:
        turns.add(group, (group, numbers[group]))
        numbers[group] += 1
    order = [turns.take() for _ in range(len(turns))]
    assert len(order) == len(groups)
    for place, (group, number) in enumerate(order):
        before = Counter(other for other, _ in order[:place])
        assert before[group] == number
        assert all(before[other] <= number + 1 for other in numbers)
