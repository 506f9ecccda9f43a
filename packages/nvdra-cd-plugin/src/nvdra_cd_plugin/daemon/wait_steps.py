# SPDX-License-Identifier: Apache-2.0
"""What a wait for a daemon does next: the decision alone, from the daemon's state and the time.

The daemon's pod and its DaemonSet are read to explain a wait: when the user is notified, and just
before the wait ends. Without need nothing is asked. Times are monotonic seconds.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Self

from nvdra_cd_plugin.daemon.readiness import DaemonClaimFailure, DaemonReadiness

NOTIFY_AFTER_S: Final = 15.0
"""How long a wait may last before the user is notified; most domains have formed by then."""
_LOOKUP_BEFORE_END_S: Final = 1.0
"""How long before the end of a wait the daemon's pod is read."""
_ADDRESS_INTERVAL_S: Final = 1.0
"""Between two reads of a pod whose address is missing. Its daemon is ready, so it comes soon."""
_LIVENESS_INTERVAL_S: Final = 0.25
"""Between two checks whether a daemon whose entry is Ready lives again: nothing reports a lock."""


class Step(Enum):
    """What the wait does."""

    GIVE = auto()
    """The daemon is ready: the wait ends."""
    READ_ADDRESS = auto()
    """Read the daemon's pod, because its address says who wrote the entry."""
    TELL_FAILURE = auto()
    """Read the daemon's pod, and notify the user if its claim has failed: waiting does not help."""
    TELL_WAIT = auto()
    """Read the daemon's pod, and notify the user that the wait lasts."""
    WAIT = auto()
    """Wait until something changes, or until `WaitProgress.due`."""


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """What a wait has done so far.

    Attributes:
        lookups_at: When the daemon's pod is read, in order, without those that are past.
        address_due: When a pod whose address is missing may be read again.
        told_failure: The failure of the daemon's claim that was looked into.
        may_notify: Whether the user has not been notified yet.
    """

    lookups_at: tuple[float, ...]
    address_due: float = 0.0
    told_failure: DaemonClaimFailure | None = None
    may_notify: bool = True

    @classmethod
    def of(cls, now: float, deadline: float, *, may_notify: bool) -> Self:
        """The progress of a wait that begins now."""
        moments = (now + NOTIFY_AFTER_S, deadline - _LOOKUP_BEFORE_END_S)
        lookups_at = tuple(sorted(at for at in moments if now < at < deadline))
        return cls(lookups_at, may_notify=may_notify)

    def next(
        self, state: DaemonReadiness, failure: DaemonClaimFailure | None, now: float
    ) -> tuple[Step, Self]:
        """What is done next, for the last failure of the daemon's claim, and what is done then."""
        if state.is_ready:
            return Step.GIVE, self
        if state.is_unverified and now >= self.address_due:
            return Step.READ_ADDRESS, replace(self, address_due=now + _ADDRESS_INTERVAL_S)
        is_final = failure is not None and failure.is_final
        if self.may_notify and is_final and failure != self.told_failure:
            return Step.TELL_FAILURE, replace(self, told_failure=failure)
        if self.lookups_at and now >= self.lookups_at[0]:
            return Step.TELL_WAIT, replace(self, lookups_at=self.lookups_at[1:])
        return Step.WAIT, self

    def due(self, state: DaemonReadiness, now: float) -> float | None:
        """When to look again although nothing has changed; None: not before the end."""
        moments = list(self.lookups_at[:1])
        if state.is_unverified:
            moments.append(self.address_due)
        if state.is_outdated:
            moments.append(now + _LIVENESS_INTERVAL_S)
        return min(moments, default=None)
