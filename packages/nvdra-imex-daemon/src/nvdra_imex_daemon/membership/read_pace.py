# SPDX-License-Identifier: Apache-2.0
"""How fast a daemon takes in the changes of the clique. Pure; times are arguments.

With each change the whole object is sent to each member. A controller puts many changes into one
write, and all of its writes are received at once. Daemons that write for themselves write twice
each, more than a member needs to know one by one: after some of these writes it closes its watch
for a while, and then reads once what has become of the clique.

Measured by `python -m bench.clique_growth --without-controller`. Source: docs/decisions/
imex-daemon.md, "Who writes the clique?".
"""

from dataclasses import dataclass
from typing import Final

FREE_CHANGES: Final = 12.0
"""So many changes in a row are received at once. A controller writes a clique of 256 that grows
eight or nine times."""
COST_OF_ONE: Final = 2.0
"""A write that changes one entry alone counts for two: so daemons write for themselves."""
SECONDS_PER_MEMBER: Final = 0.25
"""Time between two reads for each member: a small object may be sent often."""
CEILING_S: Final = 10.0
"""The longest time between two reads while a controller writes; without us IMEX tries a peer again
after 15 s."""
CEILING_ALONE_S: Final = 60.0
"""The same while daemons write for themselves: the time that they need for it grows with their
number, and so must the time between two reads of all that they have written."""


@dataclass(frozen=True, slots=True)
class ReadPace:
    """What has been received so far.

    Attributes:
        free: How many changes may still be received at once.
        counted_at: When that was so, monotonic seconds.
    """

    free: float = FREE_CHANGES
    counted_at: float = 0.0

    def after_change(self, now: float, interval_s: float, changed: int) -> "ReadPace":
        """The pace after a change was received.

        Args:
            now: Monotonic seconds.
            interval_s: From the function `interval_s`.
            changed: How many entries are new or have changed.
        """
        regained = (now - self.counted_at) / interval_s
        cost = COST_OF_ONE if changed == 1 else 1.0
        return ReadPace(max(0.0, min(FREE_CHANGES, self.free + regained) - cost), now)

    def pause_s(self, interval_s: float) -> float:
        """Seconds after the last change until the next one may be received."""
        return interval_s * max(0.0, 1 - self.free)


def interval_s(members: int, *, has_controller: bool) -> float:
    """Seconds between two reads of an object that changes all the time.

    Args:
        members: How many members the object lists.
        has_controller: Whether a controller writes it.
    """
    ceiling_s = CEILING_S if has_controller else CEILING_ALONE_S
    return min(ceiling_s, SECONDS_PER_MEMBER * max(1, members))
