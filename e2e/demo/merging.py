"""One trace from what several processes remember of it, as their debug endpoints give it.

Source: `nvdra_api.runtime.telemetry.story.document`, which writes what is read here.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.telemetry.recorder import Trace
from nvdra_api.runtime.telemetry.spans import Failure, Span, SpanEvent, Value
from nvdra_api.types.ids import SpanID, TraceID
from nvdra_api.types.keys import ERROR_TYPE, Outcome

Json = Mapping[str, Any]


def merged(parts: Iterable[Json]) -> Trace:
    """The whole of a trace; every span knows its parent, whichever part that is in."""
    known = list(parts)
    found = sorted(chain.from_iterable(map(_spans, known)), key=lambda span: span.start_ns)
    omitted = sum(part["omitted_spans"] for part in known)
    return Trace(TraceID(known[0]["trace_id"]), tuple(found), omitted)


def _spans(part: Json) -> Iterator[Span]:
    began = datetime.fromisoformat(part["start"])
    start_ns = round(began.timestamp() * 1e6) * 1000
    waiting = list(part["spans"])
    while waiting:
        told = waiting.pop()
        waiting += told["children"]
        yield _span(TraceID(part["trace_id"]), told, start_ns)


def _span(trace: TraceID, told: Json, start_ns: int) -> Span:
    begin = start_ns + _ns(told["offset_ms"])
    error = told["error"]
    return Span(
        name=told["name"],
        trace=trace,
        id=SpanID(told["span_id"]),
        parent=told["parent_id"] and SpanID(told["parent_id"]),
        operation=SpanID(told["span_id"]),
        start_ns=begin,
        end_ns=begin + _ns(told["duration_ms"]),
        attributes=_attributes(told["attributes"]),
        events=tuple(
            SpanEvent(
                event["name"], start_ns + _ns(event["offset_ms"]), _attributes(event["attributes"])
            )
            for event in told["events"]
        ),
        links=tuple(
            Link(TraceID(link["trace_id"]), SpanID(link["span_id"]), link["why"])
            for link in told["links"]
        ),
        failure=error and Failure(Outcome(error["outcome"]), error["reason"], error["message"]),
    )


def _attributes(told: Json) -> dict[str, Value]:
    """What was set on a span; why it failed is told beside."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in told.items()
        if key != ERROR_TYPE
    }


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e3) * 1000
