# SPDX-License-Identifier: Apache-2.0
"""Spans that have not ended yet, and which of them is current.

The current span is a context variable, so `await` and new tasks keep it. A worker thread does not:
pass the span to it, which is safe to use from any thread.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final

from nvdra_api import texts
from nvdra_api.errors import MAX_MESSAGE, DriverError, PermanentError, Reason
from nvdra_api.ids import SpanID, TraceID

from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.spans import AttributeValue, Failure, Span, SpanEvent, random_span_id
from nvdra_runtime.telemetry.trace_ids import Link

CANCELLED: Final = "Cancelled"
"""`error.type` of a step that the end of the process interrupted. It is not a `Reason`."""

_NO_ATTRIBUTES: Final[Mapping[str, AttributeValue]] = {}


class SpanClock:
    """Wall-clock time that never goes back within one operation.

    The wall clock is read once; monotonic time is added to it. A clock that is set meanwhile does
    not distort the spans.
    """

    __slots__ = ("_monotonic", "_offset_s")

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._offset_s = clock.now().timestamp() - clock.monotonic()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, with microsecond precision."""
        return round((self._offset_s + self._monotonic()) * 1e6) * 1000


class ActiveSpan:
    """A span that has not ended yet.

    Attributes:
        name: What happens, in the form `verb object`.
        trace: None for a step outside any operation. Such a step is measured and logged only.
        id: ID of the span.
        subject: Attributes of its operation, which name the object.
        attributes: Attributes set so far.
        events: Events added so far, in order of time.
        failure: Why it failed; None if it has not failed.
        is_discarded: Whether it did nothing and is dropped when it ends.
        start_ns: Nanoseconds since the epoch.
    """

    __slots__ = (
        "_above",
        "_children",
        "_keep",
        "_links",
        "_operation",
        "_parent",
        "_timeline",
        "attributes",
        "events",
        "failure",
        "id",
        "is_discarded",
        "name",
        "start_ns",
        "subject",
        "trace",
    )

    def __init__(
        self,
        name: str,
        trace: TraceID | None,
        parent: SpanID | None,
        clock: SpanClock,
        attributes: Mapping[str, AttributeValue],
        on_end: Callable[[Span], None],
        links: tuple[Link, ...] = (),
    ) -> None:
        self.name = name
        self.trace = trace
        self.id = random_span_id()
        self.attributes = dict(attributes)
        self.subject: Mapping[str, AttributeValue] = self.attributes
        self.failure: Failure | None = None
        self.is_discarded = False
        self._parent = parent
        self._operation = self.id
        self._timeline = clock
        self._keep = on_end
        self._links = links
        self.events: list[SpanEvent] = []
        self._above: ActiveSpan | None = None
        self._children = 0
        self.start_ns = clock.now_ns()

    def start_child(self, name: str, attributes: Mapping[str, AttributeValue]) -> "ActiveSpan":
        """Start a child span."""
        self._children += 1
        span = ActiveSpan(name, self.trace, self.id, self._timeline, attributes, self._keep)
        span._above = self
        span._operation = self._operation
        span.subject = self.subject
        return span

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Set one attribute. The keys are the constants of `telemetry.keys`."""
        self.attributes[key] = value

    def add_event(
        self, name: str, attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES
    ) -> None:
        """Add an event, such as another attempt."""
        self.events.append(SpanEvent(name, self._timeline.now_ns(), attributes))

    def add_link(self, link: Link) -> None:
        """Add a link to a span of another trace."""
        self._links = (*self._links, link)

    def add_finished_child(
        self,
        name: str,
        seconds: float,
        attributes: Mapping[str, AttributeValue] = _NO_ATTRIBUTES,
        failure: Failure | None = None,
    ) -> None:
        """Add a child span that ends now and took `seconds`.

        For work that gets a span only if it was slow, such as an NVML call.
        """
        if self.trace is None:
            return
        self._children += 1
        end_ns = self._timeline.now_ns()
        start_ns = max(self.start_ns, end_ns - round(seconds * 1e9))
        self._keep(
            Span(
                name=name,
                trace=self.trace,
                id=random_span_id(),
                parent=self.id,
                operation=self._operation,
                start_ns=start_ns,
                end_ns=end_ns,
                attributes=attributes,
                failure=failure,
            )
        )

    def discard(self) -> None:
        """Drop this step: no span, no measurement, no log record.

        A step with children that were not discarded has done something, and is not dropped.
        """
        self.is_discarded = not self._children

    def discard_unless_written(self) -> None:
        """Drop this step or operation when it ends, unless `note_write` was called in it."""
        self.is_discarded = True

    def fail(self, error: BaseException) -> None:
        """Mark the span as failed. An exception that leaves its block does so, too."""
        self.failure = failure_of(error)
        self.is_discarded = False

    def end(self) -> float:
        """End the span now and pass it on, unless it is discarded or in no trace.

        Returns:
            Its duration in seconds.
        """
        end_ns = max(self.start_ns, self._timeline.now_ns())
        if self.is_discarded:
            self.discard()
        if self.is_discarded and self._above is not None:
            self._above._children -= 1
        if self.trace is not None and not self.is_discarded:
            self._keep(self._finished(self.trace, end_ns))
        return (end_ns - self.start_ns) / 1e9

    def _finished(self, trace: TraceID, end_ns: int) -> Span:
        return Span(
            self.name,
            trace,
            self.id,
            self._parent,
            self._operation,
            self.start_ns,
            end_ns,
            self.attributes,
            tuple(self.events),
            self._links,
            self.failure,
        )


CURRENT_SPAN: Final[ContextVar[ActiveSpan | None]] = ContextVar("nvdra_span", default=None)
"""The span of the step that the current task executes."""


def note_write() -> None:
    """Keep the span of the current step, in which a change is sent to the API server."""
    span = CURRENT_SPAN.get()
    if span is not None:
        span.is_discarded = False


def failure_of(error: BaseException) -> Failure:
    """Describe an exception for operators: its outcome, its reason, its message and the advice."""
    if isinstance(error, DriverError):
        return Failure(_outcome_of(error), error.reason.value, error.operator_text)
    if isinstance(error, asyncio.CancelledError):
        return Failure(keys.Outcome.CANCELLED, CANCELLED, "interrupted")
    text = "".join(traceback.format_exception_only(error)).strip()
    message = texts.encodable(texts.shortened(text, MAX_MESSAGE))
    return Failure(keys.Outcome.INTERNAL, Reason.INTERNAL.value, message)


def _outcome_of(error: DriverError) -> keys.Outcome:
    if error.reason is Reason.INTERNAL:
        return keys.Outcome.INTERNAL
    is_final = isinstance(error, PermanentError)
    return keys.Outcome.PERMANENT if is_final else keys.Outcome.RETRYABLE
