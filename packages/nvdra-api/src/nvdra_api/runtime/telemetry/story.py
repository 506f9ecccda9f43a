"""A trace arranged for reading: who is below whom, what lies on which scale, what it comes to.

Pure; `waterfall` and `page` draw it, the debug endpoint gives `document` to machines.
Source: spec/tracing.md §2.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from nvdra_api.protocol import identity
from nvdra_api.runtime.telemetry.recorder import Trace
from nvdra_api.runtime.telemetry.spans import Failure, Span, SpanEvent, Value
from nvdra_api.types import keys
from nvdra_api.types.ids import SpanID

_CLAIM, _DOMAIN, _MEMBER = "claim", "compute domain", "member"

_MANY = 3
"""So many alike are one row."""

_TOLD_ELSEWHERE = frozenset(
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
class Node:
    """A span and what happened below it, by start."""

    span: Span
    children: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a waterfall.

    Attributes:
        span: What it shows.
        depth: How far below the section's first row.
        offset: Where its bar begins, 0 to 1 of the section's scale.
        length: How long its bar is, likewise; `offset + length` is at most 1.
    """

    span: Span
    depth: int
    offset: float
    length: float


@dataclass(frozen=True, slots=True)
class Section:
    """Rows on one scale: the whole life of a claim or a domain, or one operation with its steps.

    A prepare of 3 ms cannot be read on the scale of the hours that the claim was held.
    """

    title: str
    seconds: float
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace in one line.

    Attributes:
        trace: The trace ID.
        name: Of the root, or of the first span where there is no root yet.
        kind: What it is the story of: `claim` or `compute domain`.
        subject: `<namespace>/<name>` of that, empty when no span says.
        node: Name of the node, empty when no span says it, or several say different ones.
        start_ns: Of the first span, since the epoch.
        seconds: From the first start to the last end.
        outcome: Of the newest operation, empty when none has ended.
        reason: Why the newest operation failed, empty when it did not.
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


def tops(trace: Trace) -> tuple[Node, ...]:
    """The tree of a trace: usually the root alone; without it, whatever has no parent here."""
    present = {span.id for span in trace.spans}
    below: dict[SpanID | None, list[Span]] = defaultdict(list)
    for span in trace.spans:
        below[span.parent if span.parent in present else None].append(span)

    def grow(span: Span) -> Node:
        return Node(span, tuple(grow(child) for child in below[span.id]))

    return tuple(grow(span) for span in below[None])


def sections(trace: Trace) -> Sequence[Section]:
    """The life of the object first, then every operation that has steps, on its own scale."""
    top = tops(trace)
    life = [node for node in top if node.span.parent is None]
    operations = [child for node in life for child in node.children]
    operations += [node for node in top if node.span.parent is not None]
    operations.sort(key=lambda node: node.span.start_ns)
    lines = [(node.span, 0) for node in life]
    lines += [(node.span, 1 if life else 0) for node in operations]
    return [
        section(f"life of the {_kind(trace)}", [span for span, _ in lines], lines),
        *(_operation(node) for node in operations if node.children),
    ]


def summary(trace: Trace) -> Summary:
    """The trace in one line."""
    first = next((span for span in trace.spans if span.parent is None), trace.spans[0])
    newest = _newest(trace)
    failure = newest.failure if newest else None
    namespace = _said(trace.spans, keys.K8S_NAMESPACE_NAME)
    kind = _kind(trace)
    name = _said(trace.spans, keys.DOMAIN_NAME if kind == _DOMAIN else keys.K8S_RESOURCECLAIM_NAME)
    start_ns, end_ns = _extent(trace.spans)
    return Summary(
        trace=trace.id,
        name=first.name,
        kind=kind,
        subject=f"{namespace}/{name}" if name else "",
        node=_agreed(trace.spans, keys.K8S_NODE_NAME),
        start_ns=start_ns,
        seconds=(end_ns - start_ns) / 1e9,
        outcome=str(newest.attributes[keys.OUTCOME]) if newest else "",
        reason=failure.reason if failure else "",
    )


def document(trace: Trace) -> dict[str, object]:
    """The trace for machines: its summary and its spans, nested, times in milliseconds."""
    line = summary(trace)
    return {
        **listing(line),
        "omitted_spans": trace.omitted,
        "spans": [_span_document(node, line.start_ns) for node in tops(trace)],
    }


def listing(line: Summary) -> dict[str, object]:
    """A summary for machines."""
    return {
        "trace_id": line.trace,
        "name": line.name,
        "kind": line.kind,
        "claim": line.subject if line.kind == _CLAIM else "",
        "domain": line.subject if line.kind == _DOMAIN else "",
        "node": line.node,
        "start": moment(line.start_ns).isoformat(),
        "duration_ms": _ms(line.seconds * 1e9),
        "outcome": line.outcome,
        "reason": line.reason,
    }


def moment(ns: int) -> datetime:
    """Nanoseconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(ns / 1e9, UTC)


def duration(seconds: float) -> str:
    """A length of time for people, with three digits that matter."""
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


def facts(span: Span | SpanEvent) -> Mapping[str, str]:
    """The attributes worth a reader's line: not whose claim it is nor how it ended."""
    return {
        key.removeprefix("nvdra."): shown(value)
        for key, value in span.attributes.items()
        if key not in _TOLD_ELSEWHERE
        and not (key == keys.DOMAIN_UID and keys.DOMAIN_NAME in span.attributes)
    }


def label(span: Span, last: Span | None = None) -> str:
    """A span's name with the number of its attempt, or of all attempts up to the `last`."""
    attempt = span.attributes.get(keys.ATTEMPT)
    if not attempt:
        return title(span)
    if last is None or last is span:
        return f"{span.name}, attempt {attempt}"
    return f"{span.name}, attempts {attempt} to {last.attributes.get(keys.ATTEMPT)}"


def title(span: Span) -> str:
    """A span's name; that of a member with its node, because a domain has many."""
    node = span.attributes.get(keys.K8S_NODE_NAME)
    return f"{span.name} {node}" if node and span.name == _MEMBER else span.name


def notes(span: Span) -> Iterator[str]:
    """What a bar cannot say: what happened on the way, where a link leads."""
    for event in span.events:
        after = duration((event.at_ns - span.start_ns) / 1e9)
        told = "".join(f" {key}={value}" for key, value in facts(event).items())
        yield f"{event.name} after {after}{told}"
    for link in span.links:
        yield f"linked ({link.why}) to trace {link.trace}, span {link.span}"


def alike(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows in their order; what failed again and again in the same way is taken together."""
    for failure, group in groupby(rows, key=lambda row: (row.span.name, row.span.failure)):
        together = tuple(group)
        if failure[1] is None or len(together) < _MANY:
            yield from ((row,) for row in together)
        else:
            yield together


def newest_failure(trace: Trace) -> Failure | None:
    """Why the newest operation failed; None when it did not."""
    newest = _newest(trace)
    return newest.failure if newest else None


def _newest(trace: Trace) -> Span | None:
    """The operation that began last, of those that have ended."""
    ended = [span for span in trace.spans if span.parent and keys.OUTCOME in span.attributes]
    return max(ended, key=lambda span: span.start_ns, default=None)


def _operation(node: Node) -> Section:
    lines = [line for child in node.children for line in _lines(child)]
    return section(label(node.span), [node.span], lines)


def section(title: str, scale: Sequence[Span], lines: Iterable[tuple[Span, int]]) -> Section:
    """Lines on the scale of some spans; what reaches beyond (a late worker) is cut to it."""
    start_ns, end_ns = _extent(scale)
    whole = max(end_ns - start_ns, 1)
    rows: list[Row] = []
    for span, depth in lines:
        begin = min(max(span.start_ns - start_ns, 0), whole)
        end = min(max(span.end_ns - start_ns, begin), whole)
        rows.append(Row(span, depth, begin / whole, (end - begin) / whole))
    return Section(title, (end_ns - start_ns) / 1e9, tuple(rows))


def _lines(node: Node, depth: int = 0) -> Iterator[tuple[Span, int]]:
    yield node.span, depth
    for child in node.children:
        yield from _lines(child, depth + 1)


def _span_document(node: Node, start_ns: int) -> dict[str, object]:
    span = node.span
    failure = span.failure
    return {
        "name": span.name,
        "span_id": span.id,
        "parent_id": span.parent,
        "offset_ms": _ms(span.start_ns - start_ns),
        "duration_ms": _ms(span.end_ns - span.start_ns),
        "attributes": span.told_attributes,
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
                "attributes": dict(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            {"trace_id": link.trace, "span_id": link.span, "why": link.why} for link in span.links
        ],
        "children": [_span_document(child, start_ns) for child in node.children],
    }


def _extent(spans: Iterable[Span]) -> tuple[int, int]:
    starts_and_ends = [(span.start_ns, span.end_ns) for span in spans]
    return min(start for start, _ in starts_and_ends), max(end for _, end in starts_and_ends)


def _kind(trace: Trace) -> str:
    """A trace is a domain's when its ID is the UID of a domain that its spans are about."""
    told = {str(span.attributes.get(keys.DOMAIN_UID, "")) for span in trace.spans}
    return _DOMAIN if trace.id in {identity.trace_id(uid) for uid in told if uid} else _CLAIM


def _said(spans: Iterable[Span], key: str) -> str:
    return next((str(span.attributes[key]) for span in spans if key in span.attributes), "")


def _agreed(spans: Iterable[Span], key: str) -> str:
    said = {str(span.attributes[key]) for span in spans if key in span.attributes}
    return said.pop() if len(said) == 1 else ""


def shown(value: Value) -> str:
    """An attribute's value for people."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _ms(ns: float) -> float:
    return round(ns / 1e6, 3)


def _digits(number: float) -> int:
    return 0 if number >= 100 else 1 if number >= 10 else 2
