"""Draws cases of a strategy with Hypothesis, in batches: a seed gives the same cases again."""

from collections.abc import Callable

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.strategies import SearchStrategy

BATCH = 200
"""Cases of one run of Hypothesis. It remembers them, so many short runs need less memory."""


def visit_batch(strategy: SearchStrategy[bytes], seed: str, visit: Callable[[bytes], None]) -> None:
    """Call `visit` with the cases of a batch, until it raises.

    Args:
        strategy: What to draw.
        seed: Names the batch.
        visit: Gets the cases. Hypothesis does not see what it raises: it would try again.
    """
    raised: list[Exception] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        database=None,
        deadline=None,
        derandomize=False,
        max_examples=BATCH,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def batch(case: bytes) -> None:
        try:
            if not raised:
                visit(case)
        except Exception as error:  # noqa: BLE001 - it is raised below
            raised.append(error)

    batch()
    if raised:
        raise raised[0]
