# SPDX-License-Identifier: Apache-2.0
"""What a status says of a node is compared with what was true; nothing else is called untrue."""

from nvdra_testing.random_domains.timeline import Away, Change, Untruth, untruths

ALLOWED_S, END = 5.0, 100.0


def found(true: list[Change], told: list[Change], *away: Away) -> list[Untruth]:
    return untruths(true, told, away, ALLOWED_S, END)


def test_a_status_that_follows_in_time_is_true() -> None:
    true = [Change(10, True), Change(20, False), Change(30, True), Change(40, False)]
    assert found(true, [Change(each.at + 4, each.is_ready) for each in true]) == []


def test_a_node_that_is_not_counted_is_told_from_five_seconds_on() -> None:
    assert found([Change(10, True)], [Change(18, True)]) == [Untruth(15, 3, False)]


def test_a_node_that_stays_counted_is_told_until_the_end() -> None:
    true = [Change(10, True), Change(40, False)]
    assert found(true, [Change(11, True)]) == [Untruth(45, 55, True)]


def test_a_node_is_not_counted_before_it_is_ready() -> None:
    assert found([Change(20, True)], [Change(18, True)]) == [Untruth(18, 2, True)]


def test_a_node_may_be_counted_before_a_watch_shows_that_it_is_ready() -> None:
    assert found([Change(20, True, since=17)], [Change(18, True)]) == []
    assert found([Change(20, True, since=17)], [Change(16, True)]) == [Untruth(16, 1, True)]


def test_a_status_is_late_from_what_the_watch_showed_not_from_what_was_before() -> None:
    assert found([Change(20, True, since=10)], [Change(24, True)]) == []
    assert found([Change(20, True, since=10)], [Change(28, True)]) == [Untruth(25, 3, False)]


def test_what_was_true_for_a_moment_may_be_told_or_left_out() -> None:
    true = [Change(10, True), Change(50, False), Change(52, True)]
    assert found(true, [Change(11, True)]) == []
    assert found(true, [Change(11, True), Change(51, False), Change(56, True)]) == []


def test_what_is_true_again_later_does_not_excuse_the_time_between() -> None:
    true = [Change(10, True), Change(20, False), Change(60, True)]
    assert found(true, [Change(11, True)]) == [Untruth(25, 35, True)]


def test_the_time_while_somebody_is_away_does_not_count() -> None:
    late = [Change(10, True)], [Change(24, True)]
    assert found(*late, Away(12, 20), Away(11, 22)) == []
    assert found(*late, Away(0, 8)) != []
