# SPDX-License-Identifier: Apache-2.0
"""Arranges a trace for display: its tree of spans, its sections with their time scales, a summary.

Pure functions. `waterfall` and `trace_page` render the result; the debug endpoint serves
`trace_json`. Source: docs/reference/tracing.md, "Spans".
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from nvdra_api import texts
from nvdra_api.ids import SpanID

from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.spans import (
    AttributeValue,
    Failure,
    Span,
    SpanEvent,
    encodable_attributes,
)

_CLAIM, _DOMAIN, _MEMBER = "claim", "compute domain", "member"

_MIN_GROUP_SIZE = 3
"""From this many equal failures in a row on, they share one row."""

_SHOWN_ELSEWHERE = frozenset(
    {
        keys.K8S_NAMESPACE_NAME,
        keys.K8S_RESOURCECLAIM_NAME,
        keys.K8S_RESOURCECLAIM_UID,
        keys.K8S_NODE_NAME,
        keys.DOMAIN_NAME,
        keys.OUTCOME,
    }
)


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A span and its children, ordered by start."""

    span: Span
    children: tuple["SpanNode", ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a waterfall.

    Attributes:
        span: The span that it shows.
        depth: Levels below the section's first row.
        offset: Start of its bar, 0 to 1 of the section's scale.
        length: Length of its bar on the same scale; `offset + length` is at most 1.
    """

    span: Span
    depth: int
    offset: float
    length: float


@dataclass(frozen=True, slots=True)
class Section:
    """Rows on one time scale: the life of a claim or a domain, or one operation with its steps.

    A prepare of 3 ms would be invisible on the scale of the hours that a claim exists.
    """

    title: str
    seconds: float
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace in one line.

    Attributes:
        trace: The trace ID.
        name: Name of the root span, or of the first span if there is no root yet.
        kind: Kind of the object: `claim` or `compute domain`.
        subject: `<namespace>/<name>` of the object; empty if no span has it.
        node: Name of the node; empty if no span has it, or if spans differ.
        start_ns: Start of the first span, nanoseconds since the epoch.
        seconds: Time from the first start to the last end.
        outcome: Outcome of the newest operation; empty if none has ended.
        reason: Reason for which the newest operation failed; empty if it succeeded.
    """

    trace: str
    name: str
    kind: str
    subject: str
    node: str
    start_ns: int
    seconds: float
    outcome: str
    reason: str


def build_tree(trace: Trace) -> tuple[SpanNode, ...]:
    """Build the tree of a trace. Its top is the root span, or every span whose parent is absent."""
    present = {span.id for span in trace.spans}
    below: dict[SpanID | None, list[Span]] = defaultdict(list)
    for span in trace.spans:
        below[span.parent if span.parent in present else None].append(span)

    def grow(span: Span) -> SpanNode:
        return SpanNode(span, tuple(grow(child) for child in below[span.id]))

    return tuple(grow(span) for span in below[None])


def build_sections(trace: Trace) -> Sequence[Section]:
    """Build the section of the object's life, then one for each operation that has steps."""
    top = build_tree(trace)
    life = [node for node in top if node.span.parent is None]
    operations = [child for node in life for child in node.children]
    operations += [node for node in top if node.span.parent is not None]
    operations.sort(key=lambda node: node.span.start_ns)
    lines = [(node.span, 0) for node in life]
    lines += [(node.span, 1 if life else 0) for node in operations]
    return [
        build_section(f"life of the {_kind(trace)}", [span for span, _ in lines], lines),
        *(_operation_section(node) for node in operations if node.children),
    ]


def summarize(trace: Trace) -> TraceSummary:
    """Summarize the trace in one line."""
    first = next((span for span in trace.spans if span.parent is None), trace.spans[0])
    newest = _newest_operation(trace)
    failure = newest.failure if newest else None
    namespace = _first_value(trace.spans, keys.K8S_NAMESPACE_NAME)
    kind = _kind(trace)
    name = _first_value(
        trace.spans, keys.DOMAIN_NAME if kind == _DOMAIN else keys.K8S_RESOURCECLAIM_NAME
    )
    start_ns, end_ns = _time_range(trace.spans)
    return TraceSummary(
        trace=trace.id,
        name=first.name,
        kind=kind,
        subject=f"{namespace}/{name}" if name else "",
        node=_common_value(trace.spans, keys.K8S_NODE_NAME),
        start_ns=start_ns,
        seconds=(end_ns - start_ns) / 1e9,
        outcome=str(newest.attributes[keys.OUTCOME]) if newest else "",
        reason=failure.reason if failure else "",
    )


def trace_json(trace: Trace) -> dict[str, object]:
    """The trace as JSON: its summary and its nested spans, times in milliseconds."""
    line = summarize(trace)
    return {
        **summary_json(line),
        "omitted_spans": trace.omitted,
        "spans": [_span_document(node, line.start_ns) for node in build_tree(trace)],
    }


def summary_json(line: TraceSummary) -> dict[str, object]:
    """A summary as JSON."""
    return {
        "trace_id": line.trace,
        "name": line.name,
        "kind": line.kind,
        "claim": line.subject if line.kind == _CLAIM else "",
        "domain": line.subject if line.kind == _DOMAIN else "",
        "node": line.node,
        "start": utc_time(line.start_ns).isoformat(),
        "duration_ms": _ms(line.seconds * 1e9),
        "outcome": line.outcome,
        "reason": line.reason,
    }


def utc_time(ns: int) -> datetime:
    """Convert nanoseconds since the epoch into a time in UTC."""
    return datetime.fromtimestamp(ns / 1e9, UTC)


def format_duration(seconds: float) -> str:
    """Format a duration with three significant digits."""
    if seconds <= 0:
        return "0"
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.{_digits(seconds * 1e3)}f} ms"
    if seconds < 60:
        return f"{seconds:.{_digits(seconds)}f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def display_attributes(span: Span | SpanEvent) -> Mapping[str, str]:
    """The attributes to display: all but the object and the outcome, which are shown elsewhere."""
    return {
        key.removeprefix("nvdra."): format_value(value)
        for key, value in span.attributes.items()
        if key not in _SHOWN_ELSEWHERE
        and not (key == keys.DOMAIN_UID and keys.DOMAIN_NAME in span.attributes)
    }


def label(span: Span, last: Span | None = None) -> str:
    """A span's name with its attempt number, or with the range of attempts up to `last`."""
    attempt = span.attributes.get(keys.ATTEMPT)
    if not attempt:
        return title(span)
    if last is None or last is span:
        return f"{span.name}, attempt {attempt}"
    return f"{span.name}, attempts {attempt} to {last.attributes.get(keys.ATTEMPT)}"


def title(span: Span) -> str:
    """A span's name. The name of a domain's member includes its node."""
    node = span.attributes.get(keys.K8S_NODE_NAME)
    return f"{span.name} {node}" if node and span.name == _MEMBER else span.name


def notes(span: Span) -> Iterator[str]:
    """The events and links of a span, one line each."""
    for event in span.events:
        after = format_duration((event.at_ns - span.start_ns) / 1e9)
        attributes = "".join(f" {key}={value}" for key, value in display_attributes(event).items())
        yield f"{event.name} after {after}{attributes}"
    for link in span.links:
        yield f"linked ({link.kind}) to trace {link.trace}, span {link.span}"


def group_repeated_failures(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Group consecutive rows that failed in the same way. Every other row is alone."""
    for (_, failure), rows_alike in groupby(
        rows, key=lambda row: (row.span.name, row.span.failure)
    ):
        group = tuple(rows_alike)
        if failure is None or len(group) < _MIN_GROUP_SIZE:
            yield from ((row,) for row in group)
        else:
            yield group


def newest_failure(trace: Trace) -> Failure | None:
    """Why the newest operation failed; None if it succeeded."""
    newest = _newest_operation(trace)
    return newest.failure if newest else None


def _newest_operation(trace: Trace) -> Span | None:
    """The operation that started last, of those that have ended."""
    ended = [span for span in trace.spans if span.parent and keys.OUTCOME in span.attributes]
    return max(ended, key=lambda span: span.start_ns, default=None)


def _operation_section(node: SpanNode) -> Section:
    lines = [line for child in node.children for line in _lines(child)]
    return build_section(label(node.span), [node.span], lines)


def build_section(title: str, scale: Sequence[Span], lines: Iterable[tuple[Span, int]]) -> Section:
    """Place lines on the time scale of some spans. A bar that reaches beyond the scale is cut."""
    start_ns, end_ns = _time_range(scale)
    whole = max(end_ns - start_ns, 1)
    rows: list[Row] = []
    for span, depth in lines:
        begin = min(max(span.start_ns - start_ns, 0), whole)
        end = min(max(span.end_ns - start_ns, begin), whole)
        rows.append(Row(span, depth, begin / whole, (end - begin) / whole))
    return Section(title, (end_ns - start_ns) / 1e9, tuple(rows))


def _lines(node: SpanNode, depth: int = 0) -> Iterator[tuple[Span, int]]:
    yield node.span, depth
    for child in node.children:
        yield from _lines(child, depth + 1)


def _span_document(node: SpanNode, start_ns: int) -> dict[str, object]:
    span = node.span
    failure = span.failure
    return {
        "name": span.name,
        "span_id": span.id,
        "parent_id": span.parent,
        "offset_ms": _ms(span.start_ns - start_ns),
        "duration_ms": _ms(span.end_ns - span.start_ns),
        "attributes": span.exported_attributes,
        "error": failure
        and {
            "outcome": failure.outcome.value,
            "reason": failure.reason,
            "message": failure.message,
        },
        "events": [
            {
                "name": event.name,
                "offset_ms": _ms(event.at_ns - start_ns),
                "attributes": encodable_attributes(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            {"trace_id": link.trace, "span_id": link.span, "why": link.kind} for link in span.links
        ],
        "children": [_span_document(child, start_ns) for child in node.children],
    }


def _time_range(spans: Iterable[Span]) -> tuple[int, int]:
    starts_and_ends = [(span.start_ns, span.end_ns) for span in spans]
    return min(start for start, _ in starts_and_ends), max(end for _, end in starts_and_ends)


def _kind(trace: Trace) -> str:
    """Whether a trace belongs to a domain or to a claim.

    The IDs of the traces of a domain and of its members begin with the UID of a domain that their
    spans name.
    """
    uids = {str(span.attributes.get(keys.DOMAIN_UID, "")) for span in trace.spans}
    known = {trace_ids.shared_part(trace_ids.trace_id(uid)) for uid in uids if uid}
    return _DOMAIN if trace_ids.shared_part(trace.id) in known else _CLAIM


def _first_value(spans: Iterable[Span], key: str) -> str:
    return next((str(span.attributes[key]) for span in spans if key in span.attributes), "")


def _common_value(spans: Iterable[Span], key: str) -> str:
    values = {str(span.attributes[key]) for span in spans if key in span.attributes}
    return values.pop() if len(values) == 1 else ""


def format_value(value: AttributeValue) -> str:
    """Format the value of an attribute."""
    return texts.encodable(",".join(value) if isinstance(value, tuple) else str(value))


def _ms(ns: float) -> float:
    return round(ns / 1e6, 3)


def _digits(number: float) -> int:
    return 0 if number >= 100 else 1 if number >= 10 else 2
