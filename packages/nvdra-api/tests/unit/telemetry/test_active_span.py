# SPDX-License-Identifier: Apache-2.0
"""A span that has not ended: its time, its children, and what is passed on at its end."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry import active_span
from nvdra_runtime.telemetry.active_span import CURRENT_SPAN, ActiveSpan, SpanClock
from nvdra_runtime.telemetry.keys import Outcome
from nvdra_runtime.telemetry.spans import Failure, Span, SpanEvent
from nvdra_runtime.telemetry.trace_ids import Link

TRACE = TraceID("3f0c1a527c1b4d0e8a550123456789ab")
ROOT = SpanID("b" * 16)
LINK = Link(TraceID("a" * 32), SpanID("c" * 16), "inbound")
BEGIN_NS = 1_793_880_000_000_000_000
"""2026-11-05 12:00 UTC, where the clock of the tests begins."""

Start = Callable[..., ActiveSpan]


@pytest.fixture
def ended() -> list[Span]:
    return []


@pytest.fixture
def start(clock: Any, ended: list[Span]) -> Start:
    """`start()` begins an operation below `ROOT`; `start(trace=None)` one in no trace."""

    def start_(trace: TraceID | None = TRACE, **attributes: str) -> ActiveSpan:
        return ActiveSpan("prepare", trace, ROOT, SpanClock(clock), attributes, ended.append)

    return start_


def test_a_clock_that_is_set_does_not_distort_a_span(clock: Any) -> None:
    timeline = SpanClock(clock)
    assert timeline.now_ns() == BEGIN_NS
    clock.advance(0.5)
    clock.wall -= timedelta(hours=1)
    assert timeline.now_ns() == BEGIN_NS + 500_000_000


def test_times_have_microseconds(clock: Any) -> None:
    timeline = SpanClock(clock)
    clock.advance(0.000_001_6)
    assert timeline.now_ns() == BEGIN_NS + 2_000


def test_an_ended_span_is_passed_on_whole(start: Start, ended: list[Span], clock: Any) -> None:
    span = start(driver="d")
    clock.advance(0.001)
    span.add_event("asked again", {"code": 429})
    clock.advance(0.001)
    span.set_attribute("nvdra.attempt", 2)
    span.add_link(LINK)
    assert span.end() == pytest.approx(0.002)
    assert ended == [
        Span(
            name="prepare",
            trace=TRACE,
            id=span.id,
            parent=ROOT,
            operation=span.id,
            start_ns=BEGIN_NS,
            end_ns=BEGIN_NS + 2_000_000,
            attributes={"driver": "d", "nvdra.attempt": 2},
            events=(SpanEvent("asked again", BEGIN_NS + 1_000_000, {"code": 429}),),
            links=(LINK,),
        )
    ]


def test_a_link_that_came_with_the_call_stays_beside_later_ones(
    ended: list[Span], clock: Any
) -> None:
    other = Link(TraceID("d" * 32), SpanID("e" * 16), "domain")
    span = ActiveSpan("prepare", TRACE, ROOT, SpanClock(clock), {}, ended.append, (LINK,))
    span.add_link(other)
    span.end()
    assert ended[0].links == (LINK, other)


def test_children_of_any_depth_belong_to_the_operation_and_know_its_subject(
    start: Start, ended: list[Span]
) -> None:
    operation = start(claim="train")
    step = operation.start_child("configure device", {"gpu": "gpu-0"})
    call = step.start_child("call nvml", {})
    assert call.subject == step.subject == {"claim": "train"}
    for span in (call, step, operation):
        span.end()
    assert [(span.name, span.parent, span.operation) for span in ended] == [
        ("call nvml", step.id, operation.id),
        ("configure device", operation.id, operation.id),
        ("prepare", ROOT, operation.id),
    ]
    assert len({span.id for span in ended}) == 3


def test_a_finished_child_ends_now_and_never_begins_before_its_parent(
    start: Start, ended: list[Span], clock: Any
) -> None:
    operation = start()
    clock.advance(0.010)
    failure = Failure(Outcome.RETRYABLE, "NVMLError", "lost")
    operation.add_finished_child("call nvml", 0.004, {"function": "nvmlInit"}, failure)
    operation.add_finished_child("call nvml", 7.0)
    first, second = ended
    assert (first.start_ns, first.end_ns) == (BEGIN_NS + 6_000_000, BEGIN_NS + 10_000_000)
    assert (first.parent, first.operation) == (operation.id, operation.id)
    assert (first.attributes, first.failure) == ({"function": "nvmlInit"}, failure)
    assert (second.start_ns, second.end_ns) == (BEGIN_NS, BEGIN_NS + 10_000_000)


def test_a_span_in_no_trace_is_measured_and_not_passed_on(
    start: Start, ended: list[Span], clock: Any
) -> None:
    span = start(trace=None)
    span.add_finished_child("call nvml", 0.004)
    clock.advance(0.25)
    assert span.end() == pytest.approx(0.25)
    assert ended == []


def test_a_discarded_span_is_measured_and_not_passed_on(
    start: Start, ended: list[Span], clock: Any
) -> None:
    span = start()
    span.discard()
    clock.advance(0.25)
    assert span.end() == pytest.approx(0.25)
    assert ended == []


def test_a_span_with_a_child_is_discarded_only_if_the_child_was(
    start: Start, ended: list[Span]
) -> None:
    for is_child_discarded in (True, False):
        operation = start()
        step = operation.start_child("wait lock", {})
        if is_child_discarded:
            step.discard()
        step.end()
        operation.discard()
        assert operation.is_discarded is is_child_discarded
        operation.end()
    assert [span.name for span in ended] == ["wait lock", "prepare"]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_span_that_is_of_interest_if_it_writes_is_kept_by_a_write_in_a_step_of_it(
    start: Start, ended: list[Span], *, is_written: bool
) -> None:
    operation = start()
    operation.discard_unless_written()
    step = operation.start_child("ensure daemonset", {})
    step.discard_unless_written()
    token = CURRENT_SPAN.set(step)
    if is_written:
        active_span.note_write()
    CURRENT_SPAN.reset(token)
    active_span.note_write()  # outside of any step there is nothing to keep
    step.end()
    operation.end()
    assert [span.name for span in ended] == (["ensure daemonset", "prepare"] if is_written else [])


def test_a_finished_child_keeps_its_parent(start: Start, ended: list[Span]) -> None:
    operation = start()
    operation.add_finished_child("call nvml", 0.0)
    operation.discard()
    operation.end()
    assert [span.name for span in ended] == ["call nvml", "prepare"]


def test_a_failure_is_kept_although_the_span_was_discarded(start: Start, ended: list[Span]) -> None:
    span = start()
    span.discard()
    span.fail(RetryableError(Reason.LOCK_TIMEOUT, "gpu-0 is busy"))
    span.end()
    assert ended[0].failure == Failure(Outcome.RETRYABLE, "LockTimeout", "gpu-0 is busy")


def test_a_clock_that_goes_back_gives_no_negative_duration(
    start: Start, ended: list[Span], clock: Any
) -> None:
    span = start()
    clock.seconds -= 1
    assert span.end() == 0
    assert ended[0].end_ns == ended[0].start_ns


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            PermanentError(Reason.UNKNOWN_DEVICE, "gone", "drain the node"),
            Failure(Outcome.PERMANENT, "UnknownDevice", "gone; drain the node"),
        ),
        (
            RetryableError(Reason.LOCK_TIMEOUT, "later"),
            Failure(Outcome.RETRYABLE, "LockTimeout", "later"),
        ),
        (DriverError(Reason.INTERNAL, "a bug"), Failure(Outcome.INTERNAL, "Internal", "a bug")),
        (PermanentError(Reason.INTERNAL, "a bug"), Failure(Outcome.INTERNAL, "Internal", "a bug")),
        (
            asyncio.CancelledError(),
            Failure(Outcome.CANCELLED, active_span.CANCELLED, "interrupted"),
        ),
        (KeyError("gpu-0"), Failure(Outcome.INTERNAL, "Internal", "KeyError: 'gpu-0'")),
    ],
    ids=["permanent", "retryable", "bug", "permanent bug", "cancelled", "foreign"],
)
def test_an_error_is_told_with_who_must_move(error: BaseException, failure: Failure) -> None:
    assert active_span.failure_of(error) == failure


async def test_new_tasks_have_the_current_span_and_change_only_their_own(start: Start) -> None:
    span, other = start(), start()

    async def task() -> ActiveSpan | None:
        found = CURRENT_SPAN.get()
        CURRENT_SPAN.set(other)
        return found

    token = CURRENT_SPAN.set(span)
    async with asyncio.TaskGroup() as group:
        started = group.create_task(task())
    assert started.result() is span
    assert CURRENT_SPAN.get() is span
    CURRENT_SPAN.reset(token)
    assert CURRENT_SPAN.get() is None
