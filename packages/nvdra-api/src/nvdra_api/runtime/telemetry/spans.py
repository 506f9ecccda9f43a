"""A finished span: what happened, when, under what, and how it ended.

Plain values, because a span costs a prepare a few microseconds this way; `export` turns those that
leave the process into OpenTelemetry's. Spans that still run are in `active`.
"""

from collections.abc import Mapping
from os import urandom
from typing import NamedTuple

from nvdra_api.protocol.identity import Link
from nvdra_api.types.ids import SpanID, TraceID
from nvdra_api.types.keys import ERROR_TYPE, Outcome

Value = str | bool | int | float | tuple[str, ...]
"""What an attribute may hold: OpenTelemetry's types, lists as tuples."""

_ZERO_SPAN = "0" * 16


class Failure(NamedTuple):
    """Why a span ended badly: `reason` is its `error.type`, `message` a sentence for people."""

    outcome: Outcome
    reason: str
    message: str


class SpanEvent(NamedTuple):
    """A moment inside a span, at `at_ns` nanoseconds since the epoch."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


class Span(NamedTuple):
    """One finished span.

    Attributes:
        name: What happened, `verb object`.
        trace: The trace it is in.
        id: Its own ID.
        parent: The span above it; None for a root.
        operation: ID of the operation (`prepare`, `unprepare`) it is part of, its own for the
            operation itself; the root's for the root and what is written with it.
        start_ns: Nanoseconds since the epoch.
        end_ns: Likewise, not before `start_ns`.
        attributes: By the keys of `types.keys`.
        events: In order of time.
        links: To spans of other traces.
        failure: None when it went well.
    """

    name: str
    trace: TraceID
    id: SpanID
    parent: SpanID | None
    operation: SpanID
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    events: tuple[SpanEvent, ...] = ()
    links: tuple[Link, ...] = ()
    failure: Failure | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def told_attributes(self) -> dict[str, Value]:
        """The attributes as backends and pages get them: the reason of a failure among them."""
        if self.failure is None:
            return dict(self.attributes)
        return {**self.attributes, ERROR_TYPE: self.failure.reason}


def random_id() -> SpanID:
    """A new span ID, never zero."""
    while (digits := urandom(8).hex()) == _ZERO_SPAN:
        pass
    return SpanID(digits)
