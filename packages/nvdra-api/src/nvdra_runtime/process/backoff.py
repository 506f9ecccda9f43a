# SPDX-License-Identifier: Apache-2.0
"""Delays between attempts. Random numbers are arguments."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first_s` to `ceiling_s`, spread by `jitter`.

    Attributes:
        first_s: Delay before the second attempt.
        ceiling_s: Maximum delay, including jitter.
        jitter: Random share of the delay, 0 to 1: with 0.2 a delay of 10 s becomes 8 to 10 s.
    """

    first_s: float
    ceiling_s: float
    jitter: float = 0.2

    def delay(self, failures: int, chance: float) -> float:
        """The delay in seconds after a number of failures in a row.

        Args:
            failures: 1 after the first failure.
            chance: A random number, 0 ≤ chance < 1.
        """
        doubled = self.first_s * 2.0 ** min(failures - 1, 62)
        return min(doubled, self.ceiling_s) * (1 - self.jitter * chance)


def fits(delay_s: float, now: float, deadline: float) -> bool:
    """Whether the delay ends before the deadline. Both times are monotonic seconds."""
    return now + delay_s < deadline
