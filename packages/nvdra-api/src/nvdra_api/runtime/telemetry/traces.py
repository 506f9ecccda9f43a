"""The one seam: a step makes its span, its measurement and its log record together.

So they cannot disagree. An operation is the step at the top, with the claim's own metrics. Which
trace a claim has is `protocol.identity`'s to say. Source: spec/tracing.md §§1-2, 5-6; style.md §15.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Final, Generic

from typing_extensions import TypeVar

from nvdra_api.protocol import identity
from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.process import settings as process_settings
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry import environment, export, logs
from nvdra_api.runtime.telemetry.active import CURRENT, ActiveSpan, Timeline, failure_of
from nvdra_api.runtime.telemetry.calls import Call
from nvdra_api.runtime.telemetry.environment import OtelSettings
from nvdra_api.runtime.telemetry.export import Exporting, Job
from nvdra_api.runtime.telemetry.metric_export import Sending
from nvdra_api.runtime.telemetry.metrics import Metrics
from nvdra_api.runtime.telemetry.process_metrics import Measures
from nvdra_api.runtime.telemetry.recorder import Recorder
from nvdra_api.runtime.telemetry.spans import Failure, Span, SpanEvent, Value, random_id
from nvdra_api.types import keys
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import DomainUID, NodeName, SpanID, TraceID

LOG: Final = logs.logger(__name__)

M = TypeVar("M", bound=Measures, default=Metrics)
"""The metrics of the component; a DRA plugin's, unless said."""

SLOW_NVML_S: Final = 0.005
"""From here on an NVML call is worth a span of its own (spec/tracing.md §2)."""

_NOTHING: Final[Mapping[str, Value]] = {}
_CALLER: Final = 5
"""Frames from the log's writer up to the `with` that it is about."""
_STEP_LEVEL: Final = logging.INFO - 4
_LEVELS: Final = {
    keys.Outcome.SUCCESS: logging.INFO - 2,
    keys.Outcome.CANCELLED: logging.INFO - 2,
    keys.Outcome.RETRYABLE: logging.WARNING,
    keys.Outcome.PERMANENT: logging.WARNING,
    keys.Outcome.INTERNAL: logging.ERROR,
}


_Finish = Callable[[ActiveSpan, BaseException | None], None]


class Scope:
    """`with` around an operation or a step; what it gives is the span."""

    __slots__ = ("_finish", "_span", "_token")

    def __init__(self, span: ActiveSpan, finish: _Finish) -> None:
        self._span = span
        self._finish = finish

    def __enter__(self) -> ActiveSpan:
        """Make the span current."""
        self._token = CURRENT.set(self._span)
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it; an exception is its failure and travels on."""
        if error is not None:
            self._span.fail(error)
        self._finish(self._span, error)
        CURRENT.reset(self._token)


class Telemetry(Generic[M]):
    """Where spans, measurements and records of one component go.

    Attributes:
        metrics: Its metrics, for facts that are no step.
        recorder: Its last traces.
    """

    def __init__(
        self, clock: Clock, metrics: M, recorder: Recorder, exporting: Exporting | None = None
    ) -> None:
        self.metrics = metrics
        self.recorder = recorder
        self._clock = clock
        self._exporting = exporting

    @property
    def is_exporting(self) -> bool:
        """Whether spans go further than this process."""
        return self._exporting is not None

    def call(self: "Telemetry[Metrics]", operation: str, trace: TraceID) -> Call:
        """One call of the kubelet for a claim; what the claim metrics count.

        Args:
            operation: The metric's `operation`: what is asked for.
            trace: The claim's.
        """
        return Call(self.metrics, self._clock, operation, trace)

    def operation(
        self,
        name: str,
        *,
        trace: TraceID,
        parent: SpanID,
        attributes: Mapping[str, Value] = _NOTHING,
        links: tuple[Link, ...] = (),
    ) -> Scope:
        """One piece of work on an object: `prepare` of a claim, `reconcile` of a domain.

        Its outcome goes to the span and the log: verbosity 2, a warning when it failed, an error
        with its stack when that is a bug of ours. Whoever is answered with it is a `call`. One that
        turns out to have done nothing can be discarded.

        Args:
            name: The span's name.
            trace: The object's trace.
            parent: Its root, written or not (`identity.claim_root`, `identity.domain_root`).
            attributes: Which object it is: at least `claim_attributes`, `domain_attributes`.
            links: Context that came with the call.
        """
        self.metrics.operation_started(name)
        timeline = Timeline(self._clock)
        span = ActiveSpan(name, trace, parent, timeline, attributes, self._keep, links)
        return Scope(span, self._finish_operation)

    def step(
        self,
        name: str,
        attributes: Mapping[str, Value] = _NOTHING,
        *,
        parent: ActiveSpan | None = None,
    ) -> Scope:
        """One step of the operation at work, `verb object`.

        Args:
            name: The span's name and the metric's `step`.
            attributes: What is known at its beginning.
            parent: The span above it, for a worker thread; the current one by default. Outside any
                operation a step is measured and logged, and in no trace.
        """
        above = parent or CURRENT.get()
        if above is None:
            timeline = Timeline(self._clock)
            span = ActiveSpan(name, None, None, timeline, attributes, self._keep)
        else:
            span = above.step(name, attributes)
        return Scope(span, self._finish_step)

    def retroactive(
        self,
        name: str,
        *,
        trace: TraceID,
        id: SpanID | None = None,
        parent: SpanID | None,
        start: datetime,
        end: datetime,
        attributes: Mapping[str, Value] = _NOTHING,
        events: Iterable[SpanEvent] = (),
        links: tuple[Link, ...] = (),
        failure: Failure | None = None,
        is_operation: bool = False,
    ) -> None:
        """Write a span from timestamps that objects carry: a root, or `schedule`.

        Args:
            name: What happened.
            trace: The claim's trace.
            id: A derived ID for a root; random otherwise.
            parent: None for a root.
            start: With a time zone.
            end: Likewise; one before `start` (two machines, two clocks) counts as `start`.
            attributes: What is known about it.
            events: Moments inside it, in order of time.
            links: To spans of other traces.
            failure: How it failed.
            is_operation: It is one by itself, as an attempt is: there may be many below one
                parent, and the recorder may let one go without the others.
        """
        id_ = id or random_id()
        start_ns = _nanoseconds(start)
        self._keep(
            Span(
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
        )

    def nvml_call(
        self: "Telemetry[Metrics]",
        function: str,
        seconds: float,
        error: BaseException | None = None,
        *,
        span: ActiveSpan | None = None,
    ) -> None:
        """Note one NVML call: always in the histogram, as a span only when slow or failed.

        Args:
            function: Its C name.
            seconds: How long it took, until now.
            error: What it raised.
            span: The step that called, for a worker thread; the current one by default.
        """
        self.metrics.nvml_call(function, seconds)
        above = span or CURRENT.get()
        if above is not None and (seconds >= SLOW_NVML_S or error is not None):
            failure = None if error is None else failure_of(error)
            above.child("call nvml", seconds, {keys.NVML_FUNCTION: function}, failure)

    def _finish_step(self, span: ActiveSpan, error: BaseException | None) -> None:
        del error  # the operation, or whoever else hears of it, tells the operator
        seconds = span.end()
        if span.is_discarded:
            return
        self.metrics.step(span.name, seconds)
        _write(_STEP_LEVEL, span, seconds)

    def _finish_operation(self, span: ActiveSpan, error: BaseException | None) -> None:
        failure = span.failure
        outcome = keys.Outcome.SUCCESS if failure is None else failure.outcome
        span.set(keys.OUTCOME, outcome.value)
        seconds = span.end()
        self.metrics.operation_ended(span.name)
        if span.is_discarded:
            return
        is_bug = outcome is keys.Outcome.INTERNAL
        _write(_LEVELS[outcome], span, seconds, error if is_bug else None)

    def _keep(self, span: Span) -> None:
        self.recorder.add(span)
        if self._exporting is not None:
            self._exporting.add(span)


@asynccontextmanager
async def running(
    settings: OtelSettings,
    resource: Mapping[str, str],
    *,
    clock: Clock,
    metrics: M,
) -> AsyncIterator[Telemetry[M]]:
    """Telemetry of one component, exporting where an endpoint is set; leaving flushes, bounded.

    Args:
        settings: What the `OTEL_*` variables say (`environment.read`).
        resource: Attributes of the process (`resource`); the variables add to them and win.
        clock: For spans.
        metrics: Where measurements go.
    """
    for problem in settings.problems:
        LOG.warning("Ignored a telemetry setting", problem=problem)
    recorder = Recorder()
    attributes = {**resource, **settings.resource}
    jobs: dict[str, Job] = {}
    spans: Exporting | None = None
    if settings.export is not None:
        jobs["otlp"] = spans = Exporting(settings.export, settings.ratio, attributes, metrics)
    if settings.metrics is not None:
        jobs["otlp-metrics"] = Sending(settings.metrics, attributes, metrics.registry, clock)
    async with export.in_background(jobs):
        yield Telemetry(clock, metrics, recorder, spans)


def of_process(
    service: str, version: str, node: NodeName, pod_uid: str, *, clock: Clock, metrics: M
) -> AbstractAsyncContextManager[Telemetry[M]]:
    """`running`, set up by the process's `OTEL_*` variables."""
    settings = environment.read(process_settings.variables("OTEL_"))
    return running(
        settings, resource(service, version, node, pod_uid), clock=clock, metrics=metrics
    )


def resource(service: str, version: str, node: NodeName, pod_uid: str = "") -> dict[str, str]:
    """Who we are to a tracing backend (spec/tracing.md §2); `service` is the package."""
    attributes = {
        keys.SERVICE_NAMESPACE: "nvdra",
        keys.SERVICE_NAME: service,
        keys.SERVICE_VERSION: version,
        keys.K8S_NODE_NAME: node,
    }
    return {**attributes, keys.K8S_POD_UID: pod_uid} if pod_uid else attributes


def claim_attributes(ref: ClaimRef) -> dict[str, Value]:
    """The attributes that say which claim a span is about."""
    return {
        keys.K8S_NAMESPACE_NAME: ref.namespace,
        keys.K8S_RESOURCECLAIM_NAME: ref.name,
        keys.K8S_RESOURCECLAIM_UID: ref.uid,
    }


def domain_attributes(namespace: str, name: str, uid: DomainUID) -> dict[str, Value]:
    """The attributes that say which ComputeDomain a span is about."""
    return {
        keys.K8S_NAMESPACE_NAME: namespace,
        keys.DOMAIN_NAME: name,
        keys.DOMAIN_UID: uid,
    }


def claim_parent(ref: ClaimRef, node: NodeName) -> tuple[TraceID, SpanID]:
    """The trace of a claim and the root that its operations belong under."""
    return identity.trace_id(ref.uid), identity.claim_root(ref.uid, node)


def _write(
    level: int, span: ActiveSpan, seconds: float, error: BaseException | None = None
) -> None:
    if not LOG.is_enabled(logging.INFO - level):
        return
    facts = {"seconds": round(seconds, 6), **logs.attribute_facts(span.attributes)}
    if span.failure is None:
        LOG.write(level, f"Finished: {span.name}", facts, caller=_CALLER)
        return
    facts.update(reason=span.failure.reason, error=span.failure.message)
    LOG.write(level, f"Failed: {span.name}", facts, error, caller=_CALLER)


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6) * 1000
