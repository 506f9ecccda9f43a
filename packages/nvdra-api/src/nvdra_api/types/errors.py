"""What we tell a caller when something cannot be done: a stable reason, what is wrong, what to do.

The reasons are an interface: the same string is in the kubelet's error, the Event, the metric, the
log and the span. Source: spec/tracing.md §3; design.md, "Never lose the reason".
"""

from enum import StrEnum

from nvdra_api.types.ids import TraceID


class Reason(StrEnum):
    """Why a call failed, in one word that does not change."""

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
    API_UNAVAILABLE = "ApiUnavailable"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    INTERNAL = "Internal"


class DriverError(Exception):
    """A known failure: one reason, one sentence with its objects, and a remedy.

    Attributes:
        reason: The stable code.
        message: What is wrong, on which object, since when; no final full stop.
        remedy: What to do about it; no final full stop, empty where nothing sensible can be said.
        facts: The objects the message names, for logs and spans: `claim`, `device`, `holder`, …
    """

    def __init__(self, reason: Reason, message: str, remedy: str = "", **facts: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.remedy = remedy
        self.facts = facts

    def __str__(self) -> str:
        """`<Reason>: <what>; <what to do>`, as the kubelet shows it, without the trace."""
        return f"{self.reason}: {self.advice}"

    @property
    def advice(self) -> str:
        """`<what>; <what to do>`: the text of an Event, whose reason stands beside it."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

    def answer(self, trace: TraceID) -> str:
        """The text for the kubelet, with the trace to look up (spec/tracing.md §3)."""
        return f"{self} (trace {trace})"


class PermanentError(DriverError):
    """Repeating the call cannot help until someone changes an object, the node or the hardware."""


class RetryableError(DriverError):
    """The same call can succeed later although nobody edits anything."""
