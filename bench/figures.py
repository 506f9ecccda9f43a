"""Samples → the figures we quote. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Summary:
    """What is said of many durations.

    Attributes:
        p50: Median, in the unit of the samples.
        p99: The value that one in a hundred exceeds.
        samples: How many there were.
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
    """Durations of one series of rounds, in milliseconds.

    Attributes:
        prepare: Of claims prepared one after another.
        unprepare: Likewise.
        burst: From the first of eight calls at once to the last answer.
        burst_call: Of each of those calls.
    """

    prepare: list[float] = field(default_factory=list)
    unprepare: list[float] = field(default_factory=list)
    burst: list[float] = field(default_factory=list)
    burst_call: list[float] = field(default_factory=list)

    def summary(self, width: int) -> dict[str, object]:
        """As JSON; `width` calls make a burst."""
        burst_ms = statistics.median(self.burst)
        return {
            "prepare_ms": vars(Summary.of(self.prepare)),
            "unprepare_ms": vars(Summary.of(self.unprepare)),
            "at_once_call_ms": vars(Summary.of(self.burst_call)),
            "at_once_per_s": round(width / burst_ms * 1000),
        }
