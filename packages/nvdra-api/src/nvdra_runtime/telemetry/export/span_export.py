# SPDX-License-Identifier: Apache-2.0
"""Export of finished spans to an OTLP collector, without delaying the work that they describe.

OpenTelemetry's `BatchSpanProcessor` queues the spans and sends them on its own thread with the OTLP
exporter (http/protobuf). Spans that do not fit into the queue or do not reach the collector are
counted and dropped.

Importing this module imports the SDK, the exporter, requests and protobuf, which takes about 200 ms
and 4 MiB; only a process with an endpoint imports it. Source: docs/reference/tracing.md, "Spans"
(Export).
"""

import contextvars
import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from nvdra_runtime.process import task_failures
from nvdra_runtime.telemetry import logs, trace_ids
from nvdra_runtime.telemetry.export.otel_settings import SpanExportSettings
from nvdra_runtime.telemetry.export.otlp_spans import to_otel_span
from nvdra_runtime.telemetry.export.resource import create_resource
from nvdra_runtime.telemetry.metrics.process_metrics import OperationMetrics
from nvdra_runtime.telemetry.spans import Span

LOG: Final = logs.logger(__name__)
_LIBRARY_LOG: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")

_SAMPLED: Final = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
_NO_RESOURCE: Final = Resource({})


class SpanExportQueue:
    """Queues the finished spans of sampled traces for export. Safe to use from any thread.

    The processor's own count of dropped spans needs OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED and a
    MeterProvider, so this class counts the waiting spans itself and never overfills the processor.
    """

    def __init__(
        self,
        settings: SpanExportSettings,
        ratio: float,
        attributes: Mapping[str, str],
        metrics: OperationMetrics,
    ) -> None:
        """Start the processor's thread.

        Args:
            settings: Where spans are sent, and how many may wait.
            ratio: Share of the traces that is exported, 0 to 1.
            attributes: Of the process; the `OTEL_*` variables override them.
            metrics: Counts the dropped spans.
        """
        self._settings = settings
        self._ratio = ratio
        self._metrics = metrics
        self._resource = create_resource(attributes)
        self._context = contextvars.copy_context()  # says where failures are counted
        self._lock = Lock()
        self._waiting = 0
        self._is_closed = False
        self._is_abandoned = False
        self._is_exporter_shut_down = False
        self._is_failing = False
        self._exporter = OTLPSpanExporter(endpoint=settings.endpoint)
        _LIBRARY_LOG.addFilter(self._is_first_failure)
        self._processor = BatchSpanProcessor(
            _QueueExporter(self._export),
            max_queue_size=settings.queue_size,
            schedule_delay_millis=settings.delay_s * 1000,
            max_export_batch_size=settings.batch_size,
        )

    def add(self, span: Span) -> None:
        """Queue one finished span if its trace is sampled and the queue has room."""
        if not trace_ids.is_sampled(span.trace, self._ratio):
            return
        with self._lock:
            is_dropped = self._is_closed or self._waiting >= self._settings.queue_size
            if not is_dropped:
                self._waiting += 1
        if is_dropped:
            self._metrics.spans_dropped("shutdown" if self._is_closed else "queue_full")
        else:
            self._processor.on_end(_QueuedSpan(span))

    def shutdown(self) -> None:
        """Accept no more spans and send the waiting ones. Blocks until they are sent."""
        with self._lock:
            self._is_closed = True
        self._processor.shutdown()  # type: ignore[no-untyped-call]  # it has no annotations
        self._shut_down_exporter()
        _LIBRARY_LOG.removeFilter(self._is_first_failure)

    def abandon(self) -> None:
        """Drop the waiting spans and abort a request that is waiting for its retry."""
        with self._lock:
            waiting, self._waiting = self._waiting, 0
            self._is_abandoned = True
        self._metrics.spans_dropped("shutdown", waiting)
        self._shut_down_exporter()

    def _export(self, spans: Sequence[Span]) -> SpanExportResult:
        """Send one batch. Runs on the processor's thread."""
        with self._lock:
            if self._is_abandoned:
                return SpanExportResult.FAILURE
            self._waiting -= len(spans)
        result = self._context.run(self._send, spans)
        is_sent = result is SpanExportResult.SUCCESS
        if not is_sent:
            self._metrics.spans_dropped("export_failed", len(spans))
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            message = "Traces reach the collector again" if is_sent else "Cannot export traces"
            LOG.info(message, endpoint=self._settings.endpoint)
        return result

    def _send(self, spans: Sequence[Span]) -> SpanExportResult:
        """Send the spans, and note an unexpected failure: they are lost, and counted as such."""
        try:
            return self._exporter.export([to_otel_span(span, self._resource) for span in spans])
        except Exception as error:  # noqa: BLE001 - at the top of a thread
            task_failures.note("trace export", "Cannot export traces", error, spans=len(spans))
            return SpanExportResult.FAILURE

    def _shut_down_exporter(self) -> None:
        with self._lock:
            is_first, self._is_exporter_shut_down = not self._is_exporter_shut_down, True
        if is_first:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it has no annotations

    def _is_first_failure(self, record: logging.LogRecord) -> bool:
        """Let the exporter log the first failure only, not one for each batch."""
        del record
        return not self._is_failing


class _QueuedSpan(ReadableSpan):
    """One of our spans in the processor's queue.

    It is converted on the processor's thread, so that ending a span costs no conversion.
    """

    def __init__(self, span: Span) -> None:
        super().__init__(span.name, _SAMPLED, resource=_NO_RESOURCE)
        self.span = span


class _QueueExporter(SpanExporter):
    """The exporter that the processor calls."""

    def __init__(self, export: Callable[[Sequence[Span]], SpanExportResult]) -> None:
        self._export = export

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch."""
        return self._export([span.span for span in spans if isinstance(span, _QueuedSpan)])
