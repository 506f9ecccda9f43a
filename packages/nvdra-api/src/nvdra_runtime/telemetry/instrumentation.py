# SPDX-License-Identifier: Apache-2.0
"""Instrumentation of a component: one call makes the span, the measurement and the log record.

An operation is a piece of work on one object, such as the prepare of a claim. It consists of steps.
`trace_ids` decides which trace an object has. Source: docs/reference/tracing.md, "Trace identity"
to "Spans", "Metrics" to "Logs".
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic

from nvdra_api.ids import DomainUID, NodeName, SpanID, TraceID
from nvdra_api.resource.claims import ClaimRef
from typing_extensions import TypeVar

from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.task_failures import TASK_FAILURES, TaskFailures
from nvdra_runtime.settings import loader
from nvdra_runtime.telemetry import keys, logs, trace_ids
from nvdra_runtime.telemetry.active_span import CURRENT_SPAN, ActiveSpan, SpanClock, failure_of
from nvdra_runtime.telemetry.export import bounded_shutdown, otel_settings
from nvdra_runtime.telemetry.export.bounded_shutdown import Export
from nvdra_runtime.telemetry.export.otel_settings import OtelSettings
from nvdra_runtime.telemetry.kubelet_call import KubeletCall
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.metrics.process_metrics import OperationMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.repeated_failures import OperationKey, RepeatedFailures
from nvdra_runtime.telemetry.spans import AttributeValue, Failure, Span, SpanEvent, random_span_id
from nvdra_runtime.telemetry.trace_ids import Link

if TYPE_CHECKING:
    from nvdra_runtime.telemetry.export.span_export import SpanExportQueue

LOG: Final = logs.logger(__name__)

M = TypeVar("M", bound=OperationMetrics, default=PluginMetrics)
"""The metrics of the component. The default is those of a DRA plugin."""

SLOW_NVML_CALL_S: Final = 0.005
"""An NVML call that takes at least this long gets its own span.

Source: docs/reference/tracing.md, "Spans".
"""

_NO_ATTRIBUTES: Final[Mapping[str, AttributeValue]] = {}
_CALLER_FRAMES: Final = 5
"""Number of frames between the function that logs and the `with` statement."""
_STEP_LEVEL: Final = logging.INFO - 4
_LEVELS: Final = {
    keys.Outcome.SUCCESS: logging.INFO - 2,
    keys.Outcome.CANCELLED: logging.INFO - 2,
    keys.Outcome.RETRYABLE: logging.WARNING,
    keys.Outcome.PERMANENT: logging.WARNING,
    keys.Outcome.INTERNAL: logging.ERROR,
}
_Finish = Callable[[ActiveSpan, BaseException | None], None]


class SpanScope:
    """The context manager of an operation or a step. It yields the span."""

    __slots__ = ("_finish", "_span", "_token")

    def __init__(self, span: ActiveSpan, finish: _Finish) -> None:
        self._span = span
        self._finish = finish

    def discarded_unless_written(self) -> "SpanScope":
        """The same, for work that is of interest only if it changes something."""
        self._span.discard_unless_written()
        return self

    def __enter__(self) -> ActiveSpan:
        """Make the span current."""
        self._token = CURRENT_SPAN.set(self._span)
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span. An exception marks it as failed and propagates."""
        if error is not None:
            self._span.fail(error)
        self._finish(self._span, error)
        CURRENT_SPAN.reset(self._token)


class Telemetry(Generic[M]):
    """Receives the spans, measurements and log records of one component.

    Attributes:
        clock: The times of spans.
        metrics: The component's metrics, for facts that are not steps.
        recorder: The component's most recent traces.
        task_failures: What background tasks have failed of.
    """

    def __init__(
        self,
        clock: Clock,
        metrics: M,
        recorder: TraceRecorder,
        span_queue: "SpanExportQueue | None" = None,
        task_failures: TaskFailures | None = None,
    ) -> None:
        self.metrics = metrics
        self.recorder = recorder
        self.task_failures = task_failures or TaskFailures(metrics.task_failed, clock.monotonic)
        self.clock = clock
        self._span_queue = span_queue
        self._repeated = RepeatedFailures()

    @property
    def is_exporting(self) -> bool:
        """Whether spans are exported to a collector."""
        return self._span_queue is not None

    def kubelet_call(
        self: "Telemetry[PluginMetrics]", operation: str, trace: TraceID
    ) -> KubeletCall:
        """Measure one kubelet call for a claim. The claim metrics count these calls.

        Args:
            operation: The metric's label `operation`.
            trace: Trace of the claim.
        """
        return KubeletCall(self.metrics, self.clock, operation, trace)

    def operation(
        self,
        name: str,
        *,
        trace: TraceID,
        parent: SpanID,
        attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES,
        links: tuple[Link, ...] = (),
    ) -> SpanScope:
        """Start a piece of work on an object: `prepare` of a claim, `reconcile` of a domain.

        Its outcome is written to the span and the log: at verbosity 2 if it succeeds, as a warning
        if it fails, as an error with a stack trace if the failure is a bug. An operation that did
        nothing can be discarded. A failure like many before it is recorded, and not exported.

        Args:
            name: The span's name.
            trace: The object's trace.
            parent: The object's root span, which may not be written yet
                (`trace_ids.claim_root_span_id`, `trace_ids.domain_root_span_id`).
            attributes: The object, at least `claim_attributes` or `domain_attributes`.
            links: Trace context that came with the call.
        """
        self.metrics.operation_started(name)
        timeline = SpanClock(self.clock)
        key, held = (trace, name, parent), list[Span]()
        is_held = self._repeated.is_repeating(key)
        keep = partial(self._on_span_end, held=held) if is_held else self._on_span_end
        span = ActiveSpan(name, trace, parent, timeline, attributes, keep, links)
        return SpanScope(span, partial(self._finish_operation, key, held))

    def step(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES,
        *,
        parent: ActiveSpan | None = None,
    ) -> SpanScope:
        """Start a step of the current operation.

        Args:
            name: The span's name and the metric's label `step`, in the form `verb object`.
            attributes: What is known when the step starts.
            parent: The parent span, if the step runs on a worker thread; the default is the current
                span. A step outside any operation is measured and logged, but is in no trace.
        """
        parent = parent or CURRENT_SPAN.get()
        if parent is None:
            timeline = SpanClock(self.clock)
            span = ActiveSpan(name, None, None, timeline, attributes, self._on_span_end)
        else:
            span = parent.start_child(name, attributes)
        return SpanScope(span, self._finish_step)

    def write_finished_span(
        self,
        name: str,
        *,
        trace: TraceID,
        id: SpanID | None = None,
        parent: SpanID | None,
        start: datetime,
        end: datetime,
        attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES,
        events: Iterable[SpanEvent] = (),
        links: tuple[Link, ...] = (),
        failure: Failure | None = None,
        is_operation: bool = False,
    ) -> None:
        """Write a span from the timestamps of objects, such as a root span or `schedule`.

        Args:
            name: The span's name.
            trace: Its trace.
            id: A derived ID for a root span; the default is a random one.
            parent: None for a root span.
            start: With a time zone.
            end: With a time zone. An end before `start`, which comes from another machine's clock,
                counts as `start`.
            attributes: The span's attributes.
            events: In order of time.
            links: To spans of other traces.
            failure: Why it failed.
            is_operation: The span is an operation of its own, such as an attempt. There may be many
                below one parent, and the recorder may drop one without the others.
        """
        id_ = id or random_span_id()
        start_ns = _nanoseconds(start)
        span = Span(
            name=name,
            trace=trace,
            id=id_,
            parent=parent,
            operation=id_ if is_operation else parent or id_,
            start_ns=start_ns,
            end_ns=max(start_ns, _nanoseconds(end)),
            attributes=attributes,
            events=tuple(events),
            links=links,
            failure=failure,
        )
        if not is_operation or self._repeated.note((trace, name, parent), failure):
            self._on_span_end(span)
        else:
            self.recorder.add(span)

    def record_nvml_call(
        self: "Telemetry[PluginMetrics]",
        function: str,
        seconds: float,
        error: BaseException | None = None,
        *,
        span: ActiveSpan | None = None,
    ) -> None:
        """Record an NVML call that has just ended. Only slow and failed calls get a span.

        Args:
            function: The C function.
            seconds: Duration of the call.
            error: What it raised.
            span: The step that made the call, if it runs on a worker thread; the default is the
                current span.
        """
        self.metrics.nvml_call(function, seconds)
        parent = span or CURRENT_SPAN.get()
        if parent is not None and (seconds >= SLOW_NVML_CALL_S or error is not None):
            failure = None if error is None else failure_of(error)
            parent.add_finished_child("call nvml", seconds, {keys.NVML_FUNCTION: function}, failure)

    def _finish_step(self, span: ActiveSpan, error: BaseException | None) -> None:
        del error  # the operation logs it
        seconds = span.end()
        if not span.is_discarded:
            self.metrics.step(span.name, seconds)
            _log_span(_STEP_LEVEL, span, seconds)

    def _finish_operation(
        self, key: OperationKey, held: list[Span], span: ActiveSpan, error: BaseException | None
    ) -> None:
        failure = span.failure
        outcome = keys.Outcome.SUCCESS if failure is None else failure.outcome
        span.set_attribute(keys.OUTCOME, outcome.value)
        seconds = span.end()
        self.metrics.operation_ended(span.name)
        if span.is_discarded:
            return
        if self._repeated.note(key, failure) and self._span_queue is not None:
            for child in held:
                self._span_queue.add(child)
        shown = error if outcome is keys.Outcome.INTERNAL else None
        _log_span(_LEVELS[outcome], span, seconds, shown)

    def _on_span_end(self, span: Span, held: list[Span] | None = None) -> None:
        """Record a span, and export it or hold it until it is known how its operation ends."""
        self.recorder.add(span)
        if held is not None:
            held.append(span)
        elif self._span_queue is not None:
            self._span_queue.add(span)


@asynccontextmanager
async def running(
    settings: OtelSettings,
    resource: Mapping[str, str],
    *,
    clock: Clock,
    metrics: M,
) -> AsyncIterator[Telemetry[M]]:
    """Provide the telemetry of one component, with export if an endpoint is set.

    Leaving the block sends what is waiting, for a bounded time.

    Args:
        settings: What the `OTEL_*` variables ask for (`otel_settings.from_environment`).
        resource: Attributes of the process (`resource_attributes`); the variables override them.
        clock: For the times of spans.
        metrics: Receives the measurements.
    """
    for problem in settings.problems:
        LOG.warning("Ignored a telemetry setting", problem=problem)
    task_failures = TaskFailures(metrics.task_failed, clock.monotonic)
    TASK_FAILURES.set(task_failures)  # of all tasks that the caller starts from here
    exports: list[Export] = []
    span_queue = None
    # Imported here: the SDK takes 200 ms and 4 MiB, which a process without an endpoint must not
    # spend.
    if settings.export is not None:
        from nvdra_runtime.telemetry.export.span_export import SpanExportQueue

        span_queue = SpanExportQueue(settings.export, settings.ratio, resource, metrics)
        exports.append(span_queue)
    if settings.metrics is not None:
        from nvdra_runtime.telemetry.export.metric_export import PeriodicMetricExport

        exports.append(PeriodicMetricExport(settings.metrics, resource, metrics.registry, clock))
    async with bounded_shutdown.shut_down_on_exit(exports):
        yield Telemetry(clock, metrics, TraceRecorder(), span_queue, task_failures)


def for_process(
    service: str, version: str, node: NodeName, pod_uid: str, *, clock: Clock, metrics: M
) -> AbstractAsyncContextManager[Telemetry[M]]:
    """`running`, configured by the process's `OTEL_*` variables."""
    settings = otel_settings.from_environment(loader.environment_variables("OTEL_"))
    return running(
        settings, resource_attributes(service, version, node, pod_uid), clock=clock, metrics=metrics
    )


def resource_attributes(
    service: str, version: str, node: NodeName, pod_uid: str = ""
) -> dict[str, str]:
    """The resource attributes of this process; `service` is the package.

    Source: docs/reference/tracing.md, "Spans".
    """
    return {
        keys.SERVICE_NAMESPACE: "nvdra",
        keys.SERVICE_NAME: service,
        keys.SERVICE_VERSION: version,
        keys.K8S_NODE_NAME: node,
        **({keys.K8S_POD_UID: pod_uid} if pod_uid else {}),
    }


def claim_attributes(ref: ClaimRef) -> dict[str, AttributeValue]:
    """The span attributes that identify a claim."""
    return {
        keys.K8S_NAMESPACE_NAME: ref.namespace,
        keys.K8S_RESOURCECLAIM_NAME: ref.name,
        keys.K8S_RESOURCECLAIM_UID: ref.uid,
    }


def domain_attributes(namespace: str, name: str, uid: DomainUID) -> dict[str, AttributeValue]:
    """The span attributes that identify a ComputeDomain."""
    return {
        keys.K8S_NAMESPACE_NAME: namespace,
        keys.DOMAIN_NAME: name,
        keys.DOMAIN_UID: uid,
    }


def claim_trace_and_root(ref: ClaimRef, node: NodeName) -> tuple[TraceID, SpanID]:
    """The trace of a claim, and the root span that is the parent of its operations."""
    return trace_ids.trace_id(ref.uid), trace_ids.claim_root_span_id(ref.uid, node)


def _log_span(
    level: int, span: ActiveSpan, seconds: float, error: BaseException | None = None
) -> None:
    if not LOG.is_enabled(logging.INFO - level):
        return
    fields = {"seconds": round(seconds, 6), **logs.attribute_fields(span.attributes)}
    if span.failure is not None:
        fields.update(reason=span.failure.reason, error=span.failure.message)
    text = f"{'Failed' if span.failure else 'Finished'}: {span.name}"
    LOG.write(level, text, fields, error, caller=_CALLER_FRAMES)


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6) * 1000
