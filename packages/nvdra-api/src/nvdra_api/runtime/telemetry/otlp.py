"""Our spans in OpenTelemetry's form, and its exporter that sends them.

Importing this module imports the exporter, requests and protobuf: some 200 ms and 4 MiB that only
a process with an endpoint pays, in its export thread. Source: spec/tracing.md §§1-2.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as OtelLink
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from nvdra_api.__about__ import __version__
from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.telemetry.environment import Collector
from nvdra_api.runtime.telemetry.spans import Span
from nvdra_api.types import keys
from nvdra_api.types.ids import SpanID, TraceID

SCOPE: Final = InstrumentationScope("nvdra_api", __version__)
# Sampled and nothing else: these IDs are derived, so W3C's random flag (0x02) would be untrue.
_FLAGS: Final = TraceFlags(TraceFlags.SAMPLED)
COMPRESSIONS: Final = {
    "none": Compression.NoCompression,
    "gzip": Compression.Gzip,
    "deflate": Compression.Deflate,
}


class OtlpSender:
    """A connection to one collector; used by one thread, closed from any."""

    def __init__(self, collector: Collector, resource: Mapping[str, str]) -> None:
        self._resource = Resource(resource)
        self._exporter = OTLPSpanExporter(
            endpoint=collector.endpoint,
            certificate_file=collector.certificate,
            client_certificate_file=collector.client_certificate,
            client_key_file=collector.client_key,
            headers=collector.headers,
            timeout=collector.timeout_s,
            compression=COMPRESSIONS[collector.compression],
        )
        self._is_closed = False

    def send(self, spans: Sequence[Span]) -> bool:
        """Send one batch, with the exporter's retries; True when the collector took it."""
        batch = [otel_span(span, self._resource) for span in spans]
        return self._exporter.export(batch) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Abort a retry that waits, and let go of the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it has no annotations


def otel_span(span: Span, resource: Resource) -> ReadableSpan:
    """One span as OpenTelemetry's exporters read it."""
    parent = None if span.parent is None else _context(span.trace, span.parent)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace, span.id),
        parent=parent,
        resource=resource,
        attributes=span.told_attributes,
        events=[Event(event.name, event.attributes, event.at_ns) for event in span.events],
        links=[_link(link) for link in span.links],
        status=_status(span),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=SCOPE,
    )


def _status(span: Span) -> Status:
    if span.failure is None:
        return Status(StatusCode.UNSET)
    return Status(StatusCode.ERROR, span.failure.message)


def _link(link: Link) -> OtelLink:
    return OtelLink(_context(link.trace, link.span), {keys.LINK: link.why})


def _context(trace: TraceID, span: SpanID) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=_FLAGS)
