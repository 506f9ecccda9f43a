# SPDX-License-Identifier: Apache-2.0
"""Statistics of samples. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Summary:
    """The statistics of a series of durations.

    Attributes:
        p50: Median, in the unit of the samples.
        p99: 99th percentile.
        samples: Number of samples.
    """

    p50: float
    p99: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Summary":
        """Summarise at least two samples."""
        cuts = statistics.quantiles(samples, n=100, method="inclusive")
        return cls(round(statistics.median(samples), 3), round(cuts[98], 3), len(samples))


@dataclass
class Samples:
    """Durations of a series of rounds, in milliseconds.

    Attributes:
        prepare: Prepares of claims one after another.
        unprepare: Unprepares of claims one after another.
        burst: Time from the first of eight concurrent calls to the last answer.
        burst_call: Each of those calls.
    """

    prepare: list[float] = field(default_factory=list)
    unprepare: list[float] = field(default_factory=list)
    burst: list[float] = field(default_factory=list)
    burst_call: list[float] = field(default_factory=list)

    def summary(self, width: int) -> dict[str, object]:
        """The statistics as JSON. `width` is the number of calls in a burst."""
        burst_ms = statistics.median(self.burst)
        return {
            "prepare_ms": vars(Summary.of(self.prepare)),
            "unprepare_ms": vars(Summary.of(self.unprepare)),
            "at_once_call_ms": vars(Summary.of(self.burst_call)),
            "at_once_per_s": round(width / burst_ms * 1000),
        }
