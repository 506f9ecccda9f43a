# SPDX-License-Identifier: Apache-2.0
"""The errors that the driver reports to the kubelet and to users.

Every error has a stable reason. The same string appears in the answer to the kubelet, in Events,
metrics, log records and spans. `docs/reasons.md` explains each reason.
Source: docs/reference/tracing.md, "Reason codes".
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from nvdra_api import texts
from nvdra_api.ids import TraceID

MAX_MESSAGE: Final = 8192
"""The longest message in characters; it can quote a config of some KiB."""


class Reason(StrEnum):
    """Why an operation failed. The values are part of the API and do not change."""

    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_UID_CHANGED = "ClaimUIDChanged"
    NOT_ALLOCATED = "NotAllocated"
    UNKNOWN_DEVICE = "UnknownDevice"
    DEVICE_IN_USE = "DeviceInUse"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_NODE_MISSING = "DeviceNodeMissing"
    DRIVER_MISMATCH = "DriverMismatch"
    MIG_MODE_REQUIRES_RESET = "MigModeRequiresReset"
    NVML_RELEASED = "NvmlReleased"
    MPS_NOT_READY = "MpsNotReady"
    VFIO_DEVICE_BUSY = "VfioDeviceBusy"
    VFIO_BIND_FAILED = "VfioBindFailed"
    VFIO_NOT_POSSIBLE = "VfioNotPossible"
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
    FIELDS_DROPPED = "FieldsDropped"
    INTERNAL = "Internal"


class DriverError(Exception):
    """A failure that the driver can explain. Its texts are bounded, and can be encoded.

    Attributes:
        reason: The stable reason.
        message: What is wrong, with the objects it is about; no final full stop. The kubelet's
            answer, Events and status show it to all who may see the claim or the domain, so it
            names nothing of other namespaces.
        operator_message: The same with the objects of all namespaces, for the log, the debug
            endpoint and traces; equal to `message` if that has everything.
        remedy: What to do about it; no final full stop. Empty if there is no advice to give.
        since: When the problem began. If it is unknown, the answer to the kubelet sets it to the
            time of the first failure.
        facts: The objects that the message names, for log records and spans, such as `claim`,
            `device` and `holder`.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        remedy: str = "",
        *,
        since: datetime | None = None,
        operator_message: str = "",
        **facts: str,
    ) -> None:
        message = _bounded(message)
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.operator_message = _bounded(operator_message) or message
        self.remedy = _bounded(remedy)
        self.since = since
        self.facts = {name: _bounded(fact) for name, fact in facts.items()}

    def __str__(self) -> str:
        """Return `<reason>: <message>; <remedy>`."""
        return f"{self.reason}: {self.event_text}"

    @property
    def event_text(self) -> str:
        """The message of an Event: `<message>, since <time>; <remedy>`, without the reason."""
        return self._text(self.message)

    @property
    def operator_text(self) -> str:
        """The same as `event_text` for readers who may know the objects of all namespaces."""
        return self._text(self.operator_message)

    def message_for(self, namespace: str) -> str:
        """The message as readers of another namespace may see it.

        A failure of one claim is part of the message of another one that waits for it.
        """
        del namespace
        return self.message

    def kubelet_text(self, trace_id: TraceID) -> str:
        """Return the error text for the kubelet, with the ID of the claim's trace."""
        return f"{self} (trace {trace_id})"

    def _text(self, message: str) -> str:
        text = f"{message}, since {_rfc3339(self.since)}" if self.since else message
        return f"{text}; {self.remedy}" if self.remedy else text


class PermanentError(DriverError):
    """A retry cannot succeed until an object, the node or the hardware changes."""


class RetryableError(DriverError):
    """The same call can succeed later without any change by a person."""


def _bounded(text: str) -> str:
    return texts.encodable(texts.shortened(text, MAX_MESSAGE))


def _rfc3339(time: datetime) -> str:
    """Format a time as Kubernetes does: UTC, with a precision of one second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
