# SPDX-License-Identifier: Apache-2.0
"""Decides when a repeated Event is written: at once, then at most once a minute with its count.

Pure: time is an argument. `event_recorder` writes the Events. Source: docs/reference/tracing.md,
"Events".
"""

from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

INTERVAL_S: Final = 60.0
FORGET_AFTER_S: Final = 600.0
"""After this time without a repeat the next occurrence starts a new series. An Event that cannot be
written for this time is dropped."""

FIRST_RETRY_S: Final = 2.0
"""Delay of the first retry of a failed write. The delay doubles with each failure."""

MAX_KEYS: Final = 1000
"""Maximum number of series. Beyond it, the one that was written longest ago is removed."""


@dataclass(frozen=True, slots=True)
class EventSeries(Generic[V]):
    """The occurrences of one Event.

    Attributes:
        count: Number of occurrences.
        reported_count: The count in the last report.
        due_at: The earliest time for the next report.
        last_reported_at: Time of the last report; before that, of the first occurrence.
        failures: Number of reports in a row that failed.
        first: The first occurrence.
        latest: The last occurrence.
    """

    count: int
    reported_count: int
    due_at: float
    last_reported_at: float
    failures: int
    first: V
    latest: V


class EventAggregator(Generic[K, V]):
    """Counts occurrences by key and decides when a report is due."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._series: dict[K, EventSeries[V]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._series

    def add_occurrence(self, key: K, latest: V, now: float) -> int:
        """Count one more occurrence. Returns how many unreported series the limits removed."""
        lost = self._evict(now)
        known = self._series.get(key)
        if known is None:
            self._series[key] = EventSeries(1, 0, now, now, 0, latest, latest)
        else:
            self._series[key] = replace(known, count=known.count + 1, latest=latest)
        return lost

    def due(self, now: float) -> tuple[K, EventSeries[V]] | None:
        """The series to report now, the longest due first; None if there is none."""
        ready = [key for key in self._unreported() if self._series[key].due_at <= now]
        if not ready:
            return None
        key = min(ready, key=lambda each: self._series[each].due_at)
        return key, self._series[key]

    def next_due_at(self) -> float | None:
        """When the next report is due; None if all occurrences are reported."""
        return min((self._series[key].due_at for key in self._unreported()), default=None)

    def mark_reported(self, key: K, count: int, now: float) -> None:
        """A report with this count was written."""
        known = self._series.pop(key, None)
        if known is not None:
            self._series[key] = replace(
                known,
                reported_count=count,
                due_at=now + self._interval_s,
                last_reported_at=now,
                failures=0,
            )

    def mark_failed(self, key: K, now: float) -> bool:
        """A report failed. Returns whether it is retried."""
        known = self._series.get(key)
        if known is None:
            return False
        if now - known.last_reported_at > FORGET_AFTER_S:
            del self._series[key]
            return False
        wait_s = min(FIRST_RETRY_S * 2**known.failures, INTERVAL_S)
        self._series[key] = replace(known, due_at=now + wait_s, failures=known.failures + 1)
        return True

    def discard(self, key: K) -> None:
        """A report can never be written. The next occurrence starts a new series."""
        self._series.pop(key, None)

    def _unreported(self) -> list[K]:
        return [key for key, series in self._series.items() if series.count > series.reported_count]

    def _evict(self, now: float) -> int:
        """Remove old series. The keys are in the order of their last reports."""
        lost = 0
        while self._series:
            oldest, series = next(iter(self._series.items()))
            is_told = series.count == series.reported_count
            is_quiet = is_told and now - series.last_reported_at > FORGET_AFTER_S
            if not is_quiet and len(self._series) < MAX_KEYS:
                break
            del self._series[oldest]
            lost += not is_told
        return lost
