"""The status of a domain is compared with what was true, and nothing else is called untrue."""

from nvdra_testing.random_domains.timeline import NOBODY, Away, Change, Untruth, untruths

ONE, BOTH = frozenset({"node-1"}), frozenset({"node-1", "node-2"})
ALLOWED_S, END = 5.0, 100.0


def found(true: list[Change], told: list[Change], *away: Away) -> list[Untruth]:
    return untruths(true, told, away, ALLOWED_S, END)


def test_a_status_that_follows_in_time_is_true() -> None:
    true = [Change(10, ONE), Change(20, BOTH), Change(30, ONE), Change(40, NOBODY)]
    assert found(true, [Change(each.at + 4, each.nodes) for each in true]) == []


def test_a_node_that_is_not_counted_is_told_from_five_seconds_on() -> None:
    assert found([Change(10, ONE)], [Change(18, ONE)]) == [Untruth(15, 3, NOBODY, ONE)]


def test_a_node_that_stays_counted_is_told_until_the_end() -> None:
    true = [Change(10, ONE), Change(40, NOBODY)]
    assert found(true, [Change(11, ONE)]) == [Untruth(45, 55, ONE, NOBODY)]


def test_a_node_is_not_counted_before_it_is_ready() -> None:
    assert found([Change(20, ONE)], [Change(18, ONE)]) == [Untruth(18, 2, ONE, NOBODY)]


def test_what_was_true_for_a_moment_may_be_told_or_left_out() -> None:
    true = [Change(10, ONE), Change(50, NOBODY), Change(52, ONE)]
    assert found(true, [Change(11, ONE)]) == []
    assert found(true, [Change(11, ONE), Change(51, NOBODY), Change(56, ONE)]) == []


def test_what_is_true_again_later_does_not_excuse_the_time_between() -> None:
    true = [Change(10, ONE), Change(20, NOBODY), Change(60, ONE)]
    assert found(true, [Change(11, ONE)]) == [Untruth(25, 35, ONE, NOBODY)]


def test_the_time_while_somebody_is_away_does_not_count() -> None:
    late = [Change(10, ONE)], [Change(24, ONE)]
    assert found(*late, Away(12, 20), Away(11, 22)) == []
    assert found(*late, Away(0, 8)) != []
