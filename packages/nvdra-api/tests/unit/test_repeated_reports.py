import itertools

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol import aggregation
from nvdra_api.protocol.aggregation import Aggregator


def test_the_first_time_is_reported_at_once() -> None:
    reports: Aggregator[str, str] = Aggregator()
    first = reports.happened("k", "once", now=100)
    assert first is not None
    assert (first.count, first.latest) == (1, "once")
    assert reports.next_due() is None


def test_repeats_within_a_minute_are_reported_together_at_its_end() -> None:
    reports: Aggregator[str, str] = Aggregator()
    reports.happened("k", "a", now=100)
    assert reports.happened("k", "b", now=110) is None
    assert reports.happened("k", "c", now=120) is None
    assert reports.next_due() == 160
    assert reports.due(now=159.9) == {}
    (series,) = reports.due(now=160).values()
    assert (series.count, series.latest) == (3, "c")
    assert reports.next_due() is None


def test_a_repeat_after_the_minute_is_reported_at_once_with_its_count() -> None:
    reports: Aggregator[str, str] = Aggregator()
    reports.happened("k", "a", now=100)
    again = reports.happened("k", "b", now=161)
    assert again is not None
    assert again.count == 2


def test_what_went_quiet_counts_anew() -> None:
    reports: Aggregator[str, str] = Aggregator()
    reports.happened("k", "a", now=0)
    later = reports.happened("k", "a", now=aggregation.FORGET_S + 1)
    assert later is not None
    assert later.count == 1


def test_keys_are_reported_apart_and_only_so_many_are_kept() -> None:
    reports: Aggregator[int, str] = Aggregator()
    for key in range(aggregation.MOST_KEYS + 10):
        assert reports.happened(key, "", now=0) is not None
    assert 0 not in reports
    assert aggregation.MOST_KEYS + 9 in reports


@given(st.lists(st.integers(0, 30), max_size=60))
def test_no_two_reports_of_a_key_are_closer_than_a_minute_and_none_is_lost(
    pauses: list[int],
) -> None:
    reports: Aggregator[str, int] = Aggregator()
    now = 0
    told: list[float] = []
    counts: list[int] = []
    for number, pause in enumerate(pauses):
        until = now + pause
        while (due := reports.next_due()) is not None and due <= until:
            told.append(due)
            counts += [series.count for series in reports.due(due).values()]
        now = until
        if series := reports.happened("k", number, now):
            told.append(now)
            counts.append(series.count)
    while (due := reports.next_due()) is not None:
        told.append(due)
        counts += [series.count for series in reports.due(due).values()]
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(told))
    assert (counts[-1] if counts else 0) == len(pauses)
