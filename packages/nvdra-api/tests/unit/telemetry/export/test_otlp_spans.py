# SPDX-License-Identifier: Apache-2.0
"""A span keeps its IDs, times, links and failure when it is converted."""

from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.active_span import failure_of
from nvdra_runtime.telemetry.export.otlp_spans import to_otel_span
from nvdra_runtime.telemetry.export.resource import SCOPE, create_resource
from nvdra_runtime.telemetry.spans import Failure, Span, SpanEvent
from nvdra_runtime.telemetry.trace_ids import Link
from opentelemetry.trace.status import StatusCode

TRACE, OTHER = TraceID("1" * 32), TraceID("2" * 32)
RESOURCE = create_resource({"service.name": "test"})


def test_a_failed_span_becomes_an_error_with_its_reason() -> None:
    converted = to_otel_span(
        Span(
            name="verify devices",
            trace=TRACE,
            id=SpanID("a" * 16),
            parent=SpanID("b" * 16),
            operation=SpanID("b" * 16),
            start_ns=1_000,
            end_ns=3_000,
            attributes={keys.ATTEMPT: 2},
            events=(SpanEvent("asked again", 2_000, {"nvdra.code": 429}),),
            links=(Link(OTHER, SpanID("c" * 16), keys.LINK_INBOUND),),
            failure=Failure(keys.Outcome.PERMANENT, "DeviceUnhealthy", "gpu-3 is lost"),
        ),
        RESOURCE,
    )
    context, parent = converted.context, converted.parent
    assert context is not None
    assert parent is not None
    assert (context.trace_id, context.span_id) == (int(TRACE, 16), int("a" * 16, 16))
    assert parent.span_id == int("b" * 16, 16)
    assert (converted.start_time, converted.end_time) == (1_000, 3_000)
    assert converted.attributes == {keys.ATTEMPT: 2, "error.type": "DeviceUnhealthy"}
    assert [event.timestamp for event in converted.events] == [2_000]
    (link,) = converted.links
    assert link.context.trace_id == int(OTHER, 16)
    assert (converted.status.status_code, converted.status.description) == (
        StatusCode.ERROR,
        "gpu-3 is lost",
    )
    assert converted.instrumentation_scope == SCOPE


def test_a_root_has_no_parent_and_no_status() -> None:
    root = Span("claim", TRACE, SpanID("a" * 16), None, SpanID("a" * 16), 1, 2, {})
    converted = to_otel_span(root, RESOURCE)
    assert converted.parent is None
    assert converted.status.status_code is StatusCode.UNSET


def test_texts_with_lone_surrogates_are_exported() -> None:
    """The exporter would lose the whole batch."""
    odd, shown = "a \ud800", r"a \ud800"
    span = Span(
        "claim",
        TRACE,
        SpanID("a" * 16),
        None,
        SpanID("a" * 16),
        1,
        2,
        {keys.HOLDER: odd, keys.DEVICES: (odd,)},
        (SpanEvent("asked", 1, {keys.HOLDER: odd}),),
        failure=failure_of(ValueError(odd)),
    )
    converted = to_otel_span(span, RESOURCE)
    assert converted.attributes is not None
    assert (converted.attributes[keys.HOLDER], converted.attributes[keys.DEVICES]) == (
        shown,
        (shown,),
    )
    assert dict(converted.events[0].attributes or {}) == {keys.HOLDER: shown}
    assert converted.status.description == rf"ValueError: {shown}"
