# SPDX-License-Identifier: Apache-2.0
"""Conversion of our spans into OpenTelemetry's.

Source: docs/reference/tracing.md, "Trace identity" to "Spans".
"""

from typing import Final

from nvdra_api.ids import SpanID, TraceID
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.export.resource import SCOPE
from nvdra_runtime.telemetry.spans import Span, encodable_attributes
from nvdra_runtime.telemetry.trace_ids import Link

# Only the sampled flag is set: the IDs are derived, so W3C's random flag (0x02) would be wrong.
_FLAGS: Final = TraceFlags(TraceFlags.SAMPLED)


def to_otel_span(span: Span, resource: Resource) -> ReadableSpan:
    """Convert one span into the form that OpenTelemetry's exporters read."""
    parent = None if span.parent is None else _context(span.trace, span.parent)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace, span.id),
        parent=parent,
        resource=resource,
        attributes=span.exported_attributes,
        events=[
            Event(event.name, encodable_attributes(event.attributes), event.at_ns)
            for event in span.events
        ],
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


def _link(link: Link) -> trace.Link:
    return trace.Link(_context(link.trace, link.span), {keys.LINK: link.kind})


def _context(trace_id: TraceID, span_id: SpanID) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_FLAGS)
