"""One call of the kubelet for one claim, measured from its arrival to its answer.

Not the same as the operation it asks for: a retry joins the one under way, and an operation can
outlast its caller. Calls are what the claim metrics count, each once. Source: spec/tracing.md §5.
"""

from datetime import datetime
from types import TracebackType

from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.active import failure_of
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.runtime.telemetry.spans import Failure
from nvdra_api.types import keys
from nvdra_api.types.ids import TraceID


class Call:
    """`with` around the work for one claim of a call.

    Attributes:
        trace: The claim's, for the exemplar.
        device_kind: gpu, mig or vfio, as soon as that is known.
        started: When it came.
        failure: What it is answered with; None for a success.
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

    def __init__(self, metrics: Metrics, clock: Clock, operation: str, trace: TraceID) -> None:
        self.trace = trace
        self.device_kind = ""
        self.failure: Failure | None = None
        self.started: datetime = clock.now()
        self._monotonic = clock.monotonic()
        self._metrics = metrics
        self._clock = clock
        self._operation = operation

    def fail(self, error: BaseException) -> None:
        """It is answered with this error; leaving the block by an exception does the same."""
        self.failure = failure_of(error)

    def __enter__(self) -> "Call":
        """Begin; nothing is counted before the answer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Count it."""
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
