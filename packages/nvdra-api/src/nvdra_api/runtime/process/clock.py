"""Time as an argument: the only place that asks the operating system for it.

Deadlines and waits use the event loop's clock, which is the same monotonic one.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from; tests pass one that they move themselves."""

    def now(self) -> datetime:
        """Wall clock, in UTC: for what people and other machines read."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for durations and deadlines."""
        ...


class SystemClock:
    """The node's own clock."""

    def now(self) -> datetime:
        """Wall clock, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some fixed point; equals the event loop's `time()`."""
        return time.monotonic()
