# SPDX-License-Identifier: Apache-2.0
"""When an object that many watch may be written again. Pure; times are arguments.

The first change is written at once. While changes go on, each write waits longer than the one
before, so that one write has many changes: what grows to n members in small steps would otherwise
be sent n times to n watchers. When no more is expected the wait is an eighth of that, and after a
pause it is as at the beginning.

Measured by `python -m bench.clique_growth`. Source: docs/decisions/imex-daemon.md, "Who writes the
clique?".
"""

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 0.1
"""Wait after the first write. Each further one is twice as long."""
SECONDS_PER_MEMBER: Final = 0.25
CEILING_S: Final = 5.0
"""The longest wait is a quarter of a second for each member, and never longer than this: a change
in a small object costs little, and no daemon waits longer for a peer than IMEX does by itself."""
SETTLED_SHARE: Final = 0.125
QUIET_S: Final = 10.0
"""After this time without a write the waits begin anew."""


@dataclass(frozen=True, slots=True)
class WritePace:
    """The writes of one object so far.

    Attributes:
        count: Number of writes since the last pause.
        written_at: Time of the last one, monotonic seconds.
    """

    count: int = 0
    written_at: float = 0.0

    def due_in_s(self, now: float, members: int, *, is_settled: bool) -> float:
        """Seconds until the object may be written; 0 if it may be now.

        Args:
            now: Monotonic seconds.
            members: How many members the object lists.
            is_settled: Whether no more changes are expected soon.
        """
        if self._is_over(now):
            return 0.0
        longest_s = min(CEILING_S, max(FIRST_S, SECONDS_PER_MEMBER * members))
        wait_s = min(longest_s, FIRST_S * 2.0 ** min(self.count - 1, 30))
        if is_settled:
            wait_s *= SETTLED_SHARE
        return max(0.0, self.written_at + wait_s - now)

    def after_write(self, now: float) -> "WritePace":
        """The pace after a write."""
        return WritePace(1 if self._is_over(now) else self.count + 1, now)

    def _is_over(self, now: float) -> bool:
        return self.count == 0 or now - self.written_at >= QUIET_S
