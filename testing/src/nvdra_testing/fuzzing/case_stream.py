# SPDX-License-Identifier: Apache-2.0
"""Draws cases of a strategy with Hypothesis, in batches: a seed gives the same cases again."""

from collections.abc import Callable

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.strategies import SearchStrategy

BATCH = 200
"""Cases of one run of Hypothesis. It remembers them, so many short runs need less memory."""


class _End(BaseException):
    """Ends a batch. Hypothesis would try a case again that has raised an Exception."""


def visit_batch(
    strategy: SearchStrategy[bytes], seed: str, visit: Callable[[bytes], bool | None]
) -> None:
    """Call `visit` with the cases of a batch, until it returns False or raises.

    Args:
        strategy: What to draw.
        seed: Names the batch.
        visit: Gets the cases.
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
            goes_on = visit(case)
        except Exception as error:
            raised.append(error)
            raise _End from error
        if goes_on is False:
            raise _End

    try:
        batch()
    except _End:
        if raised:
            raise raised[0] from None
