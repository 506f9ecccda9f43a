"""When to tell of something that happens again and again: at once, then at most once a minute.

Pure: time is an argument. `runtime.kube.events` writes. Source: spec/tracing.md §4.
"""

from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

INTERVAL_S: Final = 60.0
FORGET_S: Final = 600.0
"""After so long without a repeat the next one counts as the first."""

MOST_KEYS: Final = 1000
"""Keys that are kept; beyond, the one that was told of longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class Series(Generic[V]):
    """One thing that may repeat.

    Attributes:
        count: Times it happened.
        told: Times that the last report said.
        told_at: When that was.
        latest: What there was to say the last time.
    """

    count: int
    told: int
    told_at: float
    latest: V


class Aggregator(Generic[K, V]):
    """Counts what happens by key, and says when a report is due."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._series: dict[K, Series[V]] = {}

    def happened(self, key: K, latest: V, now: float) -> Series[V] | None:
        """Count one more; the series if it shall be reported now, None if later."""
        self._forget(now)
        known = self._series.get(key)
        if known is None:
            self._series[key] = Series(count=1, told=1, told_at=now, latest=latest)
            return self._series[key]
        self._series[key] = replace(known, count=known.count + 1, latest=latest)
        return self._told(key, now) if now >= known.told_at + self._interval_s else None

    def __contains__(self, key: object) -> bool:
        return key in self._series

    def due(self, now: float) -> dict[K, Series[V]]:
        """What is to be reported now, after having been held back."""
        ready = [key for key, due_at in self._held_back() if due_at <= now]
        return {key: self._told(key, now) for key in ready}

    def next_due(self) -> float | None:
        """When to ask `due` again; None while nothing is held back."""
        return min((due_at for _, due_at in self._held_back()), default=None)

    def _held_back(self) -> list[tuple[K, float]]:
        return [
            (key, series.told_at + self._interval_s)
            for key, series in self._series.items()
            if series.count > series.told
        ]

    def _told(self, key: K, now: float) -> Series[V]:
        known = self._series.pop(key)
        self._series[key] = replace(known, told=known.count, told_at=now)
        return self._series[key]

    def _forget(self, now: float) -> None:
        """Drop what went quiet; the order of the keys is the order of their last reports."""
        while self._series:
            oldest, series = next(iter(self._series.items()))
            is_quiet = series.count == series.told and now - series.told_at > FORGET_S
            if not is_quiet and len(self._series) <= MOST_KEYS:
                return
            del self._series[oldest]
