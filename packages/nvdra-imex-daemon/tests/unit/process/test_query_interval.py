# SPDX-License-Identifier: Apache-2.0
"""Intervals of queries with nvidia-imex-ctl."""

import pytest
from nvdra_imex_daemon.process import query_interval


def test_queries_are_frequent_until_imex_is_ready() -> None:
    assert [
        round(query_interval.seconds_until_next(n, 0.0), 1) for n in (1, 2, 3, 4, 5, 6, 50)
    ] == [
        *(0.2, 0.4, 0.8, 1.6),
        *(3.0, 3.0, 3.0),
    ]
    assert query_interval.seconds_until_next(0, 0.5) == query_interval.READY_INTERVAL_S


@pytest.mark.parametrize(
    ("nodes", "is_suspicious", "earliest", "latest"),
    [
        (2, False, 7.5, 15),
        (2, True, 7.5, 10),
        (18, False, 22.5, 45),
        (18, True, 10, 10),
        (256, False, 320, 640),
        (256, True, 106.7, 106.7),
    ],
)
def test_connections_are_looked_at_more_rarely_the_larger_the_domain(
    nodes: int, is_suspicious: bool, earliest: float, latest: float
) -> None:
    for fraction, expected in ((0.0, earliest), (1.0, latest)):
        pause_s = query_interval.seconds_until_next_look(
            nodes, is_suspicious=is_suspicious, random_fraction=fraction
        )
        assert pause_s == pytest.approx(expected, abs=0.1)
