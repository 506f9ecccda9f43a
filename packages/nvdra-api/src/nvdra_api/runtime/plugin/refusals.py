"""What claims were refused for, since when: told on the claim and its pods, kept for `status`.

In memory and bounded: the kubelet asks again, and what still stands is noted again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nvdra_api.protocol import identity
from nvdra_api.runtime.kube.events import Events, EventType
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.types import keys
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import DriverError, Reason
from nvdra_api.types.ids import ClaimUID, NodeName

LOG = logs.logger(__name__)

MOST = 256
"""Refusals that are kept; the one that was repeated longest ago goes first."""

_SUCCESSES_FROM = 5
"""Verbosity at which what went well is told as Events too: above the chart's default, because each
costs the API server a write or two per claim (docs/decisions.md, "State and telemetry")."""

_OF_HEALTH = frozenset({Reason.DEVICE_UNHEALTHY, Reason.DEVICE_NODE_MISSING})
_DONE = {keys.PREPARE: "Prepared", keys.UNPREPARE: "Unprepared"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A claim that could not be prepared, or unprepared.

    Attributes:
        ref: The claim.
        operation: `prepare` or `unprepare`.
        reason: Why.
        advice: What, on which object, since when; what to do.
        since: When it was first refused for this reason, unless the reason knows better.
        latest: When it was last refused.
        count: How often it was refused for this reason.
        ended: When it went well after all; None as long as it stands.
    """

    ref: ClaimRef
    operation: str
    reason: Reason
    advice: str
    since: datetime
    latest: datetime
    count: int
    ended: datetime | None = None


class Refusals:
    """The refusals of one driver on one node."""

    def __init__(self, node: NodeName, events: Events, metrics: Metrics, clock: Clock) -> None:
        self._node = node
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._kept: OrderedDict[tuple[ClaimUID, str], Refusal] = OrderedDict()

    def note(
        self, ref: ClaimRef, operation: str, error: Exception, claim: ResourceClaim | None = None
    ) -> DriverError:
        """Keep a failure and tell it to the user.

        Args:
            ref: The claim.
            operation: What failed.
            error: Why; anything but a `DriverError` is a bug of ours, `Internal`.
            claim: As read; where nobody could, its pods are found out later.

        Returns:
            The failure as everyone is told it, with the time it began.
        """
        refused = error if isinstance(error, DriverError) else self._bug(ref, operation, error)
        before = self._kept.pop((ref.uid, operation), None)
        repeats = before if before and self._is_same(before, refused) else None
        now = self._clock.now()
        if refused.since is None:
            refused.since = repeats.since if repeats else now
        if repeats is None and refused.reason in _OF_HEALTH:
            self._metrics.health_event(refused.reason)
        self._kept[ref.uid, operation] = Refusal(
            ref=ref,
            operation=operation,
            reason=refused.reason,
            advice=refused.advice,
            since=refused.since,
            latest=now,
            count=repeats.count + 1 if repeats else 1,
        )
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
        self._tell(ref, claim, "Warning", refused.reason, refused.advice)
        return refused

    def done(self, ref: ClaimRef, operation: str, claim: ResourceClaim | None, what: str) -> None:
        """It went well: what was refused before is over, and who wants to hear it is told."""
        key = (ref.uid, operation)
        if key in self._kept and self._kept[key].ended is None:
            self._kept[key] = replace(self._kept[key], ended=self._clock.now())
        if LOG.is_enabled(_SUCCESSES_FROM):
            self._tell(ref, claim, "Normal", _DONE[operation], what)

    def latest(self) -> Sequence[Refusal]:
        """Those that are kept, the most recently repeated first."""
        return tuple(reversed(self._kept.values()))

    def _is_same(self, before: Refusal, refused: DriverError) -> bool:
        return before.reason is refused.reason and before.ended is None

    def _bug(self, ref: ClaimRef, operation: str, error: Exception) -> DriverError:
        return DriverError(
            Reason.INTERNAL,
            f"{operation} of claim {ref} failed on node {self._node} in a way that the driver does "
            f"not know: {type(error).__name__}",
            "this is a bug of the driver: report it with the log of its pod on that node; the "
            "kubelet tries again by itself",
        )

    def _tell(
        self, ref: ClaimRef, claim: ResourceClaim | None, type_: EventType, reason: str, text: str
    ) -> None:
        trace = identity.trace_id(ref.uid)
        self._events.emit_for(ref, claim, type_, reason, text, trace)
