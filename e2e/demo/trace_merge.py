# SPDX-License-Identifier: Apache-2.0
"""Merges the parts of one trace that several processes return on their debug endpoints.

Source: `nvdra_runtime.telemetry.recent_traces.trace_view.document`, which writes what is read here.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry.keys import ERROR_TYPE, Outcome
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.spans import AttributeValue, Failure, Span, SpanEvent
from nvdra_runtime.telemetry.trace_ids import Link

Json = Mapping[str, Any]


def merge(parts: Iterable[Json]) -> Trace:
    """Merge the parts of a trace; a span's parent may be in another part."""
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


def _attributes(told: Json) -> dict[str, AttributeValue]:
    """The attributes of a span without the error type, which is in the failure."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in told.items()
        if key != ERROR_TYPE
    }


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e3) * 1000
