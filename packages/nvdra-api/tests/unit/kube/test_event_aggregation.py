# SPDX-License-Identifier: Apache-2.0
import itertools

from hypothesis import given
from hypothesis import strategies as st
from nvdra_runtime.kube import event_aggregation
from nvdra_runtime.kube.event_aggregation import (
    FIRST_RETRY_S,
    FORGET_AFTER_S,
    MAX_KEYS,
    EventAggregator,
)


def report(reports: EventAggregator[str, str], now: float) -> tuple[int, str] | None:
    """What a report says that is made now; None when none is due."""
    due = reports.due(now)
    if due is None:
        return None
    key, series = due
    reports.mark_reported(key, series.count, now)
    return series.count, series.latest


def test_the_first_time_is_reported_at_once() -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    reports.add_occurrence("k", "once", now=100)
    assert reports.next_due_at() == 100
    assert report(reports, now=100) == (1, "once")
    assert reports.next_due_at() is None


def test_repeats_within_a_minute_are_reported_together_at_its_end() -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    reports.add_occurrence("k", "a", now=100)
    report(reports, now=100)
    reports.add_occurrence("k", "b", now=110)
    reports.add_occurrence("k", "c", now=120)
    assert reports.next_due_at() == 160
    assert report(reports, now=159.9) is None
    assert report(reports, now=160) == (3, "c")
    assert reports.next_due_at() is None


def test_a_repeat_after_the_minute_is_reported_at_once_with_its_count() -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    reports.add_occurrence("k", "a", now=100)
    report(reports, now=100)
    reports.add_occurrence("k", "b", now=161)
    assert report(reports, now=161) == (2, "b")


def test_what_happens_while_a_report_is_made_is_for_the_next_one() -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    reports.add_occurrence("k", "a", now=0)
    due = reports.due(now=0)
    assert due is not None
    reports.add_occurrence("k", "b", now=0.5)
    reports.mark_reported("k", due[1].count, now=1)
    assert report(reports, now=61) == (2, "b")


def test_what_went_quiet_counts_anew() -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    reports.add_occurrence("k", "a", now=0)
    report(reports, now=0)
    reports.add_occurrence("k", "a", now=FORGET_AFTER_S + 1)
    assert report(reports, now=FORGET_AFTER_S + 1) == (1, "a")


def test_a_report_that_failed_is_made_later_and_ever_later() -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    reports.add_occurrence("k", "a", now=0)
    waits: list[float] = []
    now = 0.0
    while reports.mark_failed("k", now):
        due = reports.next_due_at()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert max(waits) == event_aggregation.INTERVAL_S
    assert now > FORGET_AFTER_S
    assert "k" not in reports


def test_a_report_that_succeeds_after_failures_tells_the_first_and_the_last_time() -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    reports.add_occurrence("k", "first", now=0)
    reports.mark_failed("k", now=0)
    reports.add_occurrence("k", "last", now=1)
    due = reports.due(now=FIRST_RETRY_S)
    assert due is not None
    assert (due[1].first, due[1].latest, due[1].count) == ("first", "last", 2)


def test_keys_are_reported_apart_and_only_so_many_are_kept() -> None:
    reports: EventAggregator[int, str] = EventAggregator()
    lost = [reports.add_occurrence(key, "", now=0) for key in range(MAX_KEYS + 10)]
    assert sum(lost) == 10
    assert 0 not in reports
    assert MAX_KEYS + 9 in reports


@given(st.lists(st.integers(0, 30), max_size=60))
def test_no_two_reports_of_a_key_are_closer_than_a_minute_and_none_is_lost(
    pauses: list[int],
) -> None:
    reports: EventAggregator[str, str] = EventAggregator()
    now = 0.0
    told: list[float] = []
    counts: list[int] = []

    def tell(until: float) -> None:
        while (due := reports.next_due_at()) is not None and due <= until:
            said = report(reports, due)
            assert said is not None
            told.append(due)
            counts.append(said[0])

    for number, pause in enumerate(pauses):
        tell(now + pause)
        now += pause
        reports.add_occurrence("k", str(number), now)
        tell(now)
    tell(now + 1000)
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(told))
    assert (counts[-1] if counts else 0) == len(pauses)
