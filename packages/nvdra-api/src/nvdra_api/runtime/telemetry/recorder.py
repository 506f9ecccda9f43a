"""The last traces, in memory, for the debug page of a node without a tracing backend.

Bounded three ways: traces, spans of one trace (a claim that is retried for days), and spans in all.
What goes first is always whole operations, so no span is left without its parent.
Source: spec/tracing.md §2 (Export).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from nvdra_api.runtime.telemetry.spans import Span
from nvdra_api.types.ids import SpanID, TraceID

TRACES: Final = 512
SPANS_PER_TRACE: Final = 128
"""About fifteen attempts; the first and the newest are what one looks for."""
SPANS: Final = 12_288
"""Some 6 MiB."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What is remembered of one trace.

    Attributes:
        id: The trace.
        spans: By start.
        omitted: How many spans were let go to stay within bounds.
    """

    id: TraceID
    spans: tuple[Span, ...]
    omitted: int


@dataclass(slots=True)
class _Entry:
    operations: dict[SpanID, list[Span]] = field(default_factory=dict[SpanID, list[Span]])
    count: int = 0
    omitted: int = 0


class Recorder:
    """A ring of traces; safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._traces: OrderedDict[TraceID, _Entry] = OrderedDict()
        self._count = 0

    def add(self, span: Span) -> None:
        """Remember one finished span."""
        with self._lock:
            entry = self._traces.get(span.trace)
            if entry is None:
                entry = self._traces[span.trace] = _Entry()
            else:
                self._traces.move_to_end(span.trace)
            entry.operations.setdefault(span.operation, []).append(span)
            entry.count += 1
            self._count += 1
            if entry.count > SPANS_PER_TRACE:
                self._count -= _shorten(entry, span.operation)
            while len(self._traces) > TRACES or (self._count > SPANS and len(self._traces) > 1):
                self._count -= self._traces.popitem(last=False)[1].count

    def traces(self) -> Sequence[Trace]:
        """All of them, the most recently touched first."""
        with self._lock:
            return [_view(id_, entry) for id_, entry in reversed(self._traces.items())]

    def trace(self, id_: TraceID) -> Trace | None:
        """One of them, None when it is not, or no longer, remembered."""
        with self._lock:
            entry = self._traces.get(id_)
            return None if entry is None else _view(id_, entry)


def _view(id_: TraceID, entry: _Entry) -> Trace:
    spans = [span for operation in entry.operations.values() for span in operation]
    spans.sort(key=lambda span: span.start_ns)
    return Trace(id_, tuple(spans), entry.omitted)


def _shorten(entry: _Entry, newest: SpanID) -> int:
    """Let go of the oldest operations but the first, until the trace is short enough again."""
    dropped = 0
    for operation in _expendable(entry, newest):
        if entry.count <= SPANS_PER_TRACE:
            break
        count = len(entry.operations.pop(operation))
        entry.count -= count
        entry.omitted += count
        dropped += count
    return dropped


def _expendable(entry: _Entry, newest: SpanID) -> list[SpanID]:
    """Operations that may go, oldest first: not the first attempt, nor the one at work.

    Nor what others hang below: a root, a member of a domain.
    """
    above: set[SpanID | None] = {None}
    for spans in entry.operations.values():
        above |= {span.parent for span in spans} - {span.id for span in spans}
    attempts = [
        id_
        for id_, spans in entry.operations.items()
        if not any(span.parent is None or span.id in above for span in spans)
    ]
    return [id_ for id_ in attempts[1:] if id_ != newest]
