# SPDX-License-Identifier: Apache-2.0
"""What was asked of both sides, and how the answers compare."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tally:
    """Counts, and what is left to explain.

    Attributes:
        asked: How often what was asked, in words of the report.
        explained: How often each intended difference was met.
        unexplained: Everything else that differs, for people.
    """

    asked: Counter[str] = field(default_factory=Counter[str])
    explained: Counter[str] = field(default_factory=Counter[str])
    unexplained: list[str] = field(default_factory=list)
