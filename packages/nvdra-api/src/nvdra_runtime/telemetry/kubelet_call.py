# SPDX-License-Identifier: Apache-2.0
"""Measures one kubelet call for one claim, from its arrival to its answer.

A call is not the operation that it asks for: a retry joins the operation in progress, and an
operation can outlast its caller. The claim metrics count calls. Source: docs/reference/tracing.md,
"Metrics".
"""

from datetime import datetime
from types import TracebackType

from nvdra_api.ids import TraceID

from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.active_span import failure_of
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.spans import Failure


class KubeletCall:
    """Context manager around the work for one claim of a call.

    Attributes:
        trace: Trace of the claim, for the exemplar.
        device_kind: gpu, mig or vfio; empty until it is known.
        started: Time of arrival.
        failure: The failure that is answered; None for a success.
    """

    __slots__ = (
        "_clock",
        "_metrics",
        "_monotonic",
        "_operation",
        "device_kind",
        "failure",
        "started",
        "trace",
    )

    def __init__(
        self, metrics: PluginMetrics, clock: Clock, operation: str, trace: TraceID
    ) -> None:
        self.trace = trace
        self.device_kind = ""
        self.failure: Failure | None = None
        self.started: datetime = clock.now()
        self._monotonic = clock.monotonic()
        self._metrics = metrics
        self._clock = clock
        self._operation = operation

    def fail(self, error: BaseException) -> None:
        """Record the error that is answered. An exception that leaves the block does so, too."""
        self.failure = failure_of(error)

    def __enter__(self) -> "KubeletCall":
        """Start. The call is counted when it is answered."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Count the call."""
        if error is not None:
            self.fail(error)
        failure = self.failure
        self._metrics.call_answered(
            self._operation,
            self._clock.monotonic() - self._monotonic,
            outcome=keys.Outcome.SUCCESS if failure is None else failure.outcome,
            reason="" if failure is None else failure.reason,
            device_kind=self.device_kind,
            trace=self.trace,
        )
