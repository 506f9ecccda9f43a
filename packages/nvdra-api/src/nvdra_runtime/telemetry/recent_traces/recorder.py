# SPDX-License-Identifier: Apache-2.0
"""Keeps the most recent traces in memory, for the debug page of a node without a tracing backend.

Three limits apply: traces, spans of one trace (a claim may be retried for days), and spans in all.
The recorder drops whole operations, so that every span that stays has its parent.
Source: docs/reference/tracing.md, "Spans" (Export).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from nvdra_api.ids import SpanID, TraceID

from nvdra_runtime.telemetry.spans import Span

MAX_TRACES: Final = 512
MAX_SPANS_PER_TRACE: Final = 128
"""About fifteen attempts. The first and the newest attempts are kept."""
MAX_SPANS: Final = 12_288
"""About 6 MiB."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of one trace that are in memory.

    Attributes:
        id: The trace.
        spans: Ordered by start.
        omitted: Number of spans that were dropped because of the limits.
    """

    id: TraceID
    spans: tuple[Span, ...]
    omitted: int


@dataclass(slots=True)
class _Entry:
    operations: dict[SpanID, list[Span]] = field(default_factory=dict[SpanID, list[Span]])
    count: int = 0
    omitted: int = 0


class TraceRecorder:
    """Keeps the most recent traces. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._traces: OrderedDict[TraceID, _Entry] = OrderedDict()
        self._count = 0

    def add(self, span: Span) -> None:
        """Add one finished span."""
        with self._lock:
            entry = self._traces.get(span.trace)
            if entry is None:
                entry = self._traces[span.trace] = _Entry()
            else:
                self._traces.move_to_end(span.trace)
            entry.operations.setdefault(span.operation, []).append(span)
            entry.count += 1
            self._count += 1
            if entry.count > MAX_SPANS_PER_TRACE:
                self._count -= _evict_operations(entry, span.operation)
            while len(self._traces) > MAX_TRACES or (
                self._count > MAX_SPANS and len(self._traces) > 1
            ):
                self._count -= self._traces.popitem(last=False)[1].count

    def traces(self) -> Sequence[Trace]:
        """All traces, the most recently extended first."""
        with self._lock:
            return [_snapshot(id_, entry) for id_, entry in reversed(self._traces.items())]

    def trace(self, id_: TraceID) -> Trace | None:
        """One trace; None if it is not in memory."""
        with self._lock:
            entry = self._traces.get(id_)
            return None if entry is None else _snapshot(id_, entry)


def _snapshot(id_: TraceID, entry: _Entry) -> Trace:
    spans = [span for operation in entry.operations.values() for span in operation]
    spans.sort(key=lambda span: span.start_ns)
    return Trace(id_, tuple(spans), entry.omitted)


def _evict_operations(entry: _Entry, newest: SpanID) -> int:
    """Drop the oldest operations but the first until the trace is within its limit."""
    dropped = 0
    for operation in _evictable(entry, newest):
        if entry.count <= MAX_SPANS_PER_TRACE:
            break
        count = len(entry.operations.pop(operation))
        entry.count -= count
        entry.omitted += count
        dropped += count
    return dropped


def _evictable(entry: _Entry, newest: SpanID) -> list[SpanID]:
    """Operations that may be dropped, oldest first.

    The first attempt, the newest operation, and the parents of other operations (a root, a member
    of a domain) stay.
    """
    parents: set[SpanID | None] = {None}
    for spans in entry.operations.values():
        parents |= {span.parent for span in spans} - {span.id for span in spans}
    attempts = [
        id_
        for id_, spans in entry.operations.items()
        if not any(span.parent is None or span.id in parents for span in spans)
    ]
    return [id_ for id_ in attempts[1:] if id_ != newest]
