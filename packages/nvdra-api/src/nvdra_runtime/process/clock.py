# SPDX-License-Identifier: Apache-2.0
"""The clock, as an argument. Only this module reads the operating system's clocks.

Deadlines and waits use the event loop's clock, which is the same monotonic clock.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A clock. Tests pass one that they set themselves."""

    def now(self) -> datetime:
        """Wall-clock time in UTC, for people and other machines."""
        ...

    def monotonic(self) -> float:
        """Monotonic seconds, for durations and deadlines."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        """Wall-clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Monotonic seconds, equal to the event loop's `time()`."""
        return time.monotonic()
