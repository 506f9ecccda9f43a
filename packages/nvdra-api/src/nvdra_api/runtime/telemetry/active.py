"""Spans that still run: the handle a step works with, and which one is current.

The current span is a context variable, so it follows `await` and tasks by itself. It does not
follow a value into a worker thread: pass the handle there, it is safe to use from any thread.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final

from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.spans import Failure, Span, SpanEvent, Value, random_id
from nvdra_api.types import keys
from nvdra_api.types.errors import DriverError, PermanentError, Reason
from nvdra_api.types.ids import SpanID, TraceID

CANCELLED: Final = "Cancelled"
"""`error.type` of what the end of the process interrupted; not a reason anybody is given."""

_NOTHING: Final[Mapping[str, Value]] = {}


class Timeline:
    """Wall-clock nanoseconds that never run backwards within one operation.

    The wall is read once and monotonic time added to it, so a clock that is stepped in the middle
    bends no span.
    """

    __slots__ = ("_monotonic", "_offset_s")

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._offset_s = clock.now().timestamp() - clock.monotonic()

    def now_ns(self) -> int:
        """Now, in nanoseconds since the epoch; good to a microsecond."""
        return round((self._offset_s + self._monotonic()) * 1e6) * 1000


class ActiveSpan:
    """One span while it runs.

    Attributes:
        name: What happens, `verb object`.
        trace: None for a step outside any operation: measured and logged, but in no trace.
        id: Its own ID.
        subject: Attributes of the operation it belongs to: which object all this is about.
        attributes: Its own, as set so far.
        events: Moments noted so far, in order of time.
        failure: Why it failed, once it has.
        is_discarded: It did nothing and leaves nothing.
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
        timeline: Timeline,
        attributes: Mapping[str, Value],
        keep: Callable[[Span], None],
        links: tuple[Link, ...] = (),
    ) -> None:
        self.name = name
        self.trace = trace
        self.id = random_id()
        self.attributes = dict(attributes)
        self.subject: Mapping[str, Value] = self.attributes
        self.failure: Failure | None = None
        self.is_discarded = False
        self._parent = parent
        self._operation = self.id
        self._timeline = timeline
        self._keep = keep
        self._links = links
        self.events: list[SpanEvent] = []
        self._above: ActiveSpan | None = None
        self._children = 0
        self.start_ns = timeline.now_ns()

    def step(self, name: str, attributes: Mapping[str, Value]) -> "ActiveSpan":
        """A span below this one, started now."""
        self._children += 1
        span = ActiveSpan(name, self.trace, self.id, self._timeline, attributes, self._keep)
        span._above = self
        span._operation = self._operation
        span.subject = self.subject
        return span

    def set(self, key: str, value: Value) -> None:
        """Set one attribute; keys are constants of `types.keys`."""
        self.attributes[key] = value

    def event(self, name: str, attributes: Mapping[str, Value] = _NOTHING) -> None:
        """Note a moment: one more try, a change of what is waited for."""
        self.events.append(SpanEvent(name, self._timeline.now_ns(), attributes))

    def link(self, link: Link) -> None:
        """Point at a span of another trace that this one has to do with."""
        self._links = (*self._links, link)

    def child(
        self,
        name: str,
        seconds: float,
        attributes: Mapping[str, Value] = _NOTHING,
        failure: Failure | None = None,
    ) -> None:
        """Note something that is over now and took `seconds`, as a span below this one.

        For what deserves a span only once one knows how long it took, such as a slow NVML call.
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
                id=random_id(),
                parent=self.id,
                operation=self._operation,
                start_ns=start_ns,
                end_ns=end_ns,
                attributes=attributes,
                failure=failure,
            )
        )

    def discard(self) -> None:
        """Leave nothing of this step: no span, no measurement, no log record.

        A step that has spans below it has done something, and stays; steps that were discarded
        themselves do not count.
        """
        self.is_discarded = not self._children

    def fail(self, error: BaseException) -> None:
        """Mark the span as failed; leaving its block by an exception does this by itself."""
        self.failure = failure_of(error)
        self.is_discarded = False

    def end(self) -> float:
        """Finish now and hand the span over, unless it is discarded or in no trace.

        Returns:
            Seconds since its start.
        """
        end_ns = max(self.start_ns, self._timeline.now_ns())
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


CURRENT: Final[ContextVar[ActiveSpan | None]] = ContextVar("nvdra_span", default=None)
"""The span of the step that runs in this task."""


def failure_of(error: BaseException) -> Failure:
    """How an exception reads in telemetry: its reason, what and what to do, who must move."""
    if isinstance(error, DriverError):
        return Failure(_outcome_of(error), error.reason.value, error.advice)
    if isinstance(error, asyncio.CancelledError):
        return Failure(keys.Outcome.CANCELLED, CANCELLED, "interrupted")
    text = "".join(traceback.format_exception_only(error)).strip()
    return Failure(keys.Outcome.INTERNAL, Reason.INTERNAL.value, text)


def _outcome_of(error: DriverError) -> keys.Outcome:
    if error.reason is Reason.INTERNAL:
        return keys.Outcome.INTERNAL
    is_final = isinstance(error, PermanentError)
    return keys.Outcome.PERMANENT if is_final else keys.Outcome.RETRYABLE
