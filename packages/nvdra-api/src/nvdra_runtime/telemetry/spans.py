# SPDX-License-Identifier: Apache-2.0
"""Finished spans, as plain values.

A plain value costs a prepare a few microseconds. `export.otlp_spans` converts exported spans into
OpenTelemetry's; `active_span` has the spans that have not ended.
"""

from collections.abc import Mapping
from os import urandom
from typing import NamedTuple

from nvdra_api import texts
from nvdra_api.ids import SpanID, TraceID

from nvdra_runtime.telemetry.keys import ERROR_TYPE, Outcome
from nvdra_runtime.telemetry.trace_ids import Link

AttributeValue = str | bool | int | float | tuple[str, ...]
"""The value of an attribute: OpenTelemetry's types, with tuples for lists."""

_ZERO_SPAN = "0" * 16


class Failure(NamedTuple):
    """Why a span failed. `reason` is its `error.type`, `message` a sentence for people."""

    outcome: Outcome
    reason: str
    message: str


class SpanEvent(NamedTuple):
    """An event inside a span, `at_ns` nanoseconds since the epoch."""

    name: str
    at_ns: int
    attributes: Mapping[str, AttributeValue]


class Span(NamedTuple):
    """One finished span.

    Attributes:
        name: What happened, in the form `verb object`.
        trace: ID of its trace.
        id: ID of the span.
        parent: ID of its parent; None for a root.
        operation: ID of the operation (`prepare`, `unprepare`) that it is part of. An operation has
            its own ID; the root and the spans written with it have the root's ID.
        start_ns: Nanoseconds since the epoch.
        end_ns: Nanoseconds since the epoch, not before `start_ns`.
        attributes: Attributes by the keys of `telemetry.keys`.
        events: In order of time.
        links: To spans of other traces.
        failure: None if it succeeded.
    """

    name: str
    trace: TraceID
    id: SpanID
    parent: SpanID | None
    operation: SpanID
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    events: tuple[SpanEvent, ...] = ()
    links: tuple[Link, ...] = ()
    failure: Failure | None = None

    @property
    def seconds(self) -> float:
        """Duration."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def exported_attributes(self) -> dict[str, AttributeValue]:
        """The attributes as backends and debug pages show them, with the reason of a failure."""
        attributes = encodable_attributes(self.attributes)
        if self.failure is not None:
            attributes[ERROR_TYPE] = self.failure.reason
        return attributes


def encodable_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """The attributes with texts that exporters and pages can encode."""
    return {key: _encodable(value) for key, value in attributes.items()}


def _encodable(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return texts.encodable(value)
    return tuple(map(texts.encodable, value)) if isinstance(value, tuple) else value


def random_span_id() -> SpanID:
    """Create a random span ID, which is never zero."""
    while (digits := urandom(8).hex()) == _ZERO_SPAN:
        pass
    return SpanID(digits)
