# SPDX-License-Identifier: Apache-2.0
"""When to query IMEX again."""

from typing import Final

from nvdra_runtime.process.backoff import Backoff

NOT_READY_BACKOFF: Final = Backoff(first_s=0.2, ceiling_s=3.0)
"""Intervals of queries while IMEX is not READY."""
READY_INTERVAL_S: Final = 10.0
"""Interval of queries while it is READY. They detect a hanging IMEX; its end is noticed anyway."""
LOOK_S_PER_NODE: Final = 2.5
"""Each look at the connections asks every node of the domain, so that with this interval a node is
asked about every two seconds, however many ask it."""
MIN_LOOK_INTERVAL_S: Final = 15.0
SECOND_LOOK_S: Final = 10.0
"""Time to a second look when something was wrong at the first, in a domain of up to 24 nodes."""


def seconds_until_next(not_ready_answers: int, random_fraction: float) -> float:
    """Seconds until the next query.

    Args:
        not_ready_answers: Number of consecutive answers other than READY.
        random_fraction: A random number, 0 ≤ random_fraction < 1.
    """
    if not_ready_answers == 0:
        return READY_INTERVAL_S
    return NOT_READY_BACKOFF.delay(not_ready_answers, random_fraction)


def seconds_until_next_look(
    node_count: int, *, is_suspicious: bool, random_fraction: float
) -> float:
    """Seconds until the next look at the connections to the other nodes.

    Args:
        node_count: Number of nodes that are asked.
        is_suspicious: Whether the last look found what an earlier one has not confirmed.
        random_fraction: A random number, 0 ≤ random_fraction < 1.
    """
    interval_s = max(MIN_LOOK_INTERVAL_S, LOOK_S_PER_NODE * node_count)
    spread_s = interval_s * (1 + random_fraction) / 2
    return min(spread_s, max(SECOND_LOOK_S, interval_s / 6)) if is_suspicious else spread_s
