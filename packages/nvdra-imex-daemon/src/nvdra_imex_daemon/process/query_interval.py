"""When to query IMEX again."""

from typing import Final

from nvdra_runtime.process.backoff import Backoff

NOT_READY_BACKOFF: Final = Backoff(first_s=0.2, ceiling_s=3.0)
"""Intervals of queries while IMEX is not READY."""
READY_INTERVAL_S: Final = 10.0
"""Interval of queries while it is READY. They detect a hanging IMEX; its end is noticed anyway."""


def seconds_until_next(not_ready_answers: int, random_fraction: float) -> float:
    """Seconds until the next query.

    Args:
        not_ready_answers: Number of consecutive answers other than READY.
        random_fraction: A random number, 0 ≤ random_fraction < 1.
    """
    if not_ready_answers == 0:
        return READY_INTERVAL_S
    return NOT_READY_BACKOFF.delay(not_ready_answers, random_fraction)
