"""Intervals of queries with nvidia-imex-ctl."""

from nvdra_imex_daemon.process import query_interval


def test_queries_are_frequent_until_imex_is_ready() -> None:
    assert [
        round(query_interval.seconds_until_next(n, 0.0), 1) for n in (1, 2, 3, 4, 5, 6, 50)
    ] == [
        *(0.2, 0.4, 0.8, 1.6),
        *(3.0, 3.0, 3.0),
    ]
    assert query_interval.seconds_until_next(0, 0.5) == query_interval.READY_INTERVAL_S
