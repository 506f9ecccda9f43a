"""When to tell of something that happens again and again: at once, then at most once a minute.

Pure: time is an argument. `runtime.kube.events` writes. Source: spec/tracing.md §4.
"""

from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

INTERVAL_S: Final = 60.0
FORGET_S: Final = 600.0
"""After so long without a repeat the next one counts as the first; what could not be told for so
long is given up."""

RETRY_S: Final = 2.0
"""After a report that failed the next try follows so much later, then twice as long, and so on."""

MOST_KEYS: Final = 1000
"""Keys that are kept; beyond, the one that was told of longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class Series(Generic[V]):
    """One thing that may repeat.

    Attributes:
        count: Times it happened.
        told: Times that the last report said.
        due_at: The earliest moment for the next report.
        active_at: When it was last reported; before that, when it happened first.
        failures: Reports in a row that failed.
        first: What there was to say the first time.
        latest: What there was to say the last time.
    """

    count: int
    told: int
    due_at: float
    active_at: float
    failures: int
    first: V
    latest: V


class Aggregator(Generic[K, V]):
    """Counts what happens by key, and says when a report is due."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._series: dict[K, Series[V]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._series

    def happened(self, key: K, latest: V, now: float) -> int:
        """Count one more; how many reports that never were made it cost, to stay within bounds."""
        lost = self._forget(now)
        known = self._series.get(key)
        if known is None:
            self._series[key] = Series(1, 0, now, now, 0, latest, latest)
        else:
            self._series[key] = replace(known, count=known.count + 1, latest=latest)
        return lost

    def due(self, now: float) -> tuple[K, Series[V]] | None:
        """What is to be reported now, the longest due first; None when nothing is."""
        ready = [key for key in self._untold() if self._series[key].due_at <= now]
        if not ready:
            return None
        key = min(ready, key=lambda each: self._series[each].due_at)
        return key, self._series[key]

    def next_due(self) -> float | None:
        """When to ask `due` again; None while nothing is held back."""
        return min((self._series[key].due_at for key in self._untold()), default=None)

    def told(self, key: K, count: int, now: float) -> None:
        """A report said that it happened `count` times."""
        known = self._series.pop(key, None)
        if known is not None:
            self._series[key] = replace(
                known, told=count, due_at=now + self._interval_s, active_at=now, failures=0
            )

    def failed(self, key: K, now: float) -> bool:
        """A report could not be made: again later; False when it is given up."""
        known = self._series.get(key)
        if known is None:
            return False
        if now - known.active_at > FORGET_S:
            del self._series[key]
            return False
        wait_s = min(RETRY_S * 2**known.failures, INTERVAL_S)
        self._series[key] = replace(known, due_at=now + wait_s, failures=known.failures + 1)
        return True

    def give_up(self, key: K) -> None:
        """It cannot be reported at all; the next one counts as the first."""
        self._series.pop(key, None)

    def _untold(self) -> list[K]:
        return [key for key, series in self._series.items() if series.count > series.told]

    def _forget(self, now: float) -> int:
        """Drop what went quiet; the order of the keys is that of their last reports."""
        lost = 0
        while self._series:
            oldest, series = next(iter(self._series.items()))
            is_told = series.count == series.told
            is_quiet = is_told and now - series.active_at > FORGET_S
            if not is_quiet and len(self._series) < MOST_KEYS:
                break
            del self._series[oldest]
            lost += not is_told
        return lost
