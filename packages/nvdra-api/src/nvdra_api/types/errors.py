"""What we tell a caller when something cannot be done: a stable reason, what is wrong, what to do.

The reasons are an interface: the same string is in the kubelet's error, the Event, the metric, the
log and the span. Source: spec/tracing.md §3; design.md, "Never lose the reason".
"""

from datetime import UTC, datetime
from enum import StrEnum

from nvdra_api.types.ids import TraceID


class Reason(StrEnum):
    """Why a call failed, in one word that does not change; `types.reasons` explains each."""

    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_UID_CHANGED = "ClaimUIDChanged"
    NOT_ALLOCATED = "NotAllocated"
    UNKNOWN_DEVICE = "UnknownDevice"
    DEVICE_IN_USE = "DeviceInUse"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_NODE_MISSING = "DeviceNodeMissing"
    DRIVER_MISMATCH = "DriverMismatch"
    INVALID_CONFIG = "InvalidConfig"
    FEATURE_GATE_DISABLED = "FeatureGateDisabled"
    LOCK_TIMEOUT = "LockTimeout"
    STATE_CORRUPT = "StateCorrupt"
    STATE_UNAVAILABLE = "StateUnavailable"
    API_UNAVAILABLE = "ApiUnavailable"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    DOMAIN_NOT_FOUND = "DomainNotFound"
    NAMESPACE_MISMATCH = "NamespaceMismatch"
    NODE_IN_OTHER_DOMAIN = "NodeInOtherDomain"
    NOT_A_DAEMON = "NotADaemon"
    DOMAIN_FULL = "DomainFull"
    DAEMON_NOT_READY = "DaemonNotReady"
    FABRIC_ERROR = "FabricError"
    IMEX_BINARY_MISSING = "ImexBinaryMissing"
    NAME_TAKEN = "NameTaken"
    INTERNAL = "Internal"


class DriverError(Exception):
    """A known failure: one reason, one sentence with its objects, and a remedy.

    Attributes:
        reason: The stable code.
        message: What is wrong, on which object, since when; no final full stop.
        remedy: What to do about it; no final full stop, empty where nothing sensible can be said.
        since: When it began; where nobody knows, whoever answers sets when it was first refused.
        facts: The objects the message names, for logs and spans: `claim`, `device`, `holder`, …
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        remedy: str = "",
        *,
        since: datetime | None = None,
        **facts: str,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.remedy = remedy
        self.since = since
        self.facts = facts

    def __str__(self) -> str:
        """`<Reason>: <what>; <what to do>`, as the kubelet shows it, without the trace."""
        return f"{self.reason}: {self.advice}"

    @property
    def advice(self) -> str:
        """`<what, since when>; <what to do>`: the text of an Event, whose reason stands beside."""
        what = f"{self.message}, since {_moment(self.since)}" if self.since else self.message
        return f"{what}; {self.remedy}" if self.remedy else what

    def answer(self, trace: TraceID) -> str:
        """The text for the kubelet, with the trace to look up (spec/tracing.md §3)."""
        return f"{self} (trace {trace})"


class PermanentError(DriverError):
    """Repeating the call cannot help until someone changes an object, the node or the hardware."""


class RetryableError(DriverError):
    """The same call can succeed later although nobody edits anything."""


def _moment(moment: datetime) -> str:
    """A time as Kubernetes writes it: UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
