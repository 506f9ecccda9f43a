# SPDX-License-Identifier: Apache-2.0
"""Records why claims could not be prepared or unprepared, and reports it to users.

Failures are kept in memory, for the command `status`, and their number is limited. They need not
survive a restart: the kubelet tries again, and a failure that persists is recorded again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim

from nvdra_runtime.kube.event_recorder import EventRecorder, EventType
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys, logs, trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry, claim_trace_and_root
from nvdra_runtime.telemetry.kubelet_call import KubeletCall

LOG = logs.logger(__name__)

MAX_FAILURES = 256
"""Number of failures that are kept. The one that was repeated least recently is dropped first."""

_SUCCESS_EVENT_VERBOSITY = 5
"""Verbosity from which successes are reported as Events. It is above the chart's default, because
each Event costs the API server one or two writes (docs/decisions/state-and-telemetry.md, "When are
Events of success written?").
"""

_HEALTH_REASONS = frozenset({Reason.DEVICE_UNHEALTHY, Reason.DEVICE_NODE_MISSING})
_SUCCESS_EVENT_REASONS = {keys.PREPARE: "Prepared", keys.UNPREPARE: "Unprepared"}
_UNAPPLIED_EVENT_REASON = "ConfigNotApplied"


@dataclass(frozen=True, slots=True)
class ClaimFailure:
    """A claim that could not be prepared or unprepared.

    Attributes:
        ref: The claim.
        operation: `prepare` or `unprepare`.
        reason: Reason of the latest error.
        message: What failed and what to do, for operators: Events name no object of another
            namespace, and this does.
        since: When this reason was first recorded, unless the error has a time of its own.
        latest: When it was last recorded.
        count: How often this reason was recorded.
        ended: When the operation succeeded after all, or the claim needed it no more; None while
            the failure persists.
    """

    ref: ClaimRef
    operation: str
    reason: Reason
    message: str
    since: datetime
    latest: datetime
    count: int
    ended: datetime | None = None


class FailureRecorder:
    """The failures of one driver on one node."""

    def __init__(
        self, node: NodeName, events: EventRecorder, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._node = node
        self._events = events
        self._telemetry = telemetry
        self._clock = clock
        self._failures: OrderedDict[tuple[ClaimUID, str], ClaimFailure] = OrderedDict()

    def record(
        self, ref: ClaimRef, operation: str, error: Exception, claim: ResourceClaim | None = None
    ) -> DriverError:
        """Record a failure and report it as an Event.

        Args:
            ref: The claim.
            operation: `prepare` or `unprepare`.
            error: Anything but a `DriverError` is a bug and is reported as `Internal`.
            claim: The claim as it was read. If it is None, its pods are looked up later.

        Returns:
            The error to report, with the time since when it occurs.
        """
        failure = (
            error if isinstance(error, DriverError) else self._internal_error(ref, operation, error)
        )
        previous = self._failures.pop((ref.uid, operation), None)
        if previous and (previous.reason is not failure.reason or previous.ended is not None):
            previous = None  # it is another failure
        now = self._clock.now()
        if failure.since is None:
            failure.since = previous.since if previous else now
        if previous is None and failure.reason in _HEALTH_REASONS:
            self._telemetry.metrics.health_event(failure.reason)
        self._failures[ref.uid, operation] = ClaimFailure(
            ref=ref,
            operation=operation,
            reason=failure.reason,
            message=failure.operator_text,
            since=failure.since,
            latest=now,
            count=previous.count + 1 if previous else 1,
        )
        while len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)
        self._emit_event(ref, claim, "Warning", failure.reason, failure.event_text)
        return failure

    def record_answer(
        self, ref: ClaimRef, operation: str, error: Exception, call: KubeletCall
    ) -> str:
        """Record what a call of the kubelet is answered with. Returns the text of the answer.

        An error that has a time was recorded by the operation. Any other one means that the
        operation continues after the answer: it is recorded here, with a span for the wait.
        """
        if isinstance(error, DriverError) and error.since is not None:
            call.fail(error)
            return error.kubelet_text(call.trace)
        failure = self.record(ref, operation, error)
        call.fail(failure)
        trace, root = claim_trace_and_root(ref, self._node)
        self._telemetry.write_finished_span(
            f"wait {operation}",
            trace=trace,
            parent=root,
            start=call.started,
            end=self._clock.now(),
            attributes={keys.OUTCOME: keys.Outcome.RETRYABLE},
            failure=call.failure,
        )
        LOG.warning(
            "Deadline reached; the operation continues in the background",
            claim=str(ref),
            operation=operation,
            reason=failure.reason,
            error=failure.operator_message,
            trace_id=trace,
        )
        return failure.kubelet_text(call.trace)

    def record_success(
        self, ref: ClaimRef, operation: str, claim: ResourceClaim | None, devices: Sequence[str]
    ) -> None:
        """Mark an earlier failure of the operation as ended, and report the success."""
        self._end(ref.uid, operation)
        if LOG.is_enabled(_SUCCESS_EVENT_VERBOSITY):
            text = f"{', '.join(devices)} on node {self._node}"
            self._emit_event(ref, claim, "Normal", _SUCCESS_EVENT_REASONS[operation], text)

    def end(self, uid: ClaimUID) -> None:
        """Mark the failures of a claim as ended: the kubelet does not need it any more."""
        self._end(uid, keys.PREPARE)
        self._end(uid, keys.UNPREPARE)

    def record_unapplied_configs(self, claim: ResourceClaim, texts: Sequence[str]) -> None:
        """Tell the users of a claim, which is prepared, what of it has no effect."""
        text = "; ".join(texts)
        LOG.v(2, "A config has no effect", claim=str(claim.ref), config=text)
        self._emit_event(claim.ref, claim, "Warning", _UNAPPLIED_EVENT_REASON, text)

    def latest(self) -> Sequence[ClaimFailure]:
        """The failures that are kept, the most recently recorded first."""
        return tuple(reversed(self._failures.values()))

    def _end(self, uid: ClaimUID, operation: str) -> None:
        failure = self._failures.get((uid, operation))
        if failure is not None and failure.ended is None:
            self._failures[uid, operation] = replace(failure, ended=self._clock.now())

    def _internal_error(self, ref: ClaimRef, operation: str, error: Exception) -> DriverError:
        return DriverError(
            Reason.INTERNAL,
            f"{operation} of claim {ref} failed on node {self._node} with an unexpected "
            f"{type(error).__name__}",
            "this is a bug of the driver: report it with the log of its pod on that node; the "
            "kubelet tries again by itself",
        )

    def _emit_event(
        self, ref: ClaimRef, claim: ResourceClaim | None, type_: EventType, reason: str, text: str
    ) -> None:
        trace = trace_ids.trace_id(ref.uid)
        self._events.emit_for_claim(ref, claim, type_, reason, text, trace)
