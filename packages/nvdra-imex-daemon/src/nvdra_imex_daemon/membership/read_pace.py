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
CEILING_S: Final = 10.0
"""The time between two reads is a quarter of a second for each member, and never longer than this:
a small object may be sent often, and without us IMEX tries a peer again after 15 s."""


@dataclass(frozen=True, slots=True)
class ReadPace:
    """What has been received so far.

    Attributes:
        free: How many changes may still be received at once.
        counted_at: When that was so, monotonic seconds.
    """

    free: float = FREE_CHANGES
    counted_at: float = 0.0

    def after_change(self, now: float, members: int, changed: int) -> "ReadPace":
        """The pace after a change was received.

        Args:
            now: Monotonic seconds.
            members: How many members the object lists.
            changed: How many of their entries are new or have changed.
        """
        regained = (now - self.counted_at) / interval_s(members)
        cost = COST_OF_ONE if changed == 1 else 1.0
        return ReadPace(max(0.0, min(FREE_CHANGES, self.free + regained) - cost), now)

    def pause_s(self, members: int) -> float:
        """Seconds after the last change until the next one may be received."""
        return interval_s(members) * max(0.0, 1 - self.free)


def interval_s(members: int) -> float:
    """Seconds between two reads of an object that changes all the time."""
    return min(CEILING_S, SECONDS_PER_MEMBER * max(1, members))
