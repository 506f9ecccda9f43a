# SPDX-License-Identifier: Apache-2.0
"""The ring keeps the newest traces, within bounds, and never a span without its parent."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.recent_traces import recorder
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.spans import Span, random_span_id

ROOT = trace_ids.span_id("root")


def trace_id(number: int) -> TraceID:
    return trace_ids.trace_id(f"claim-{number}")


def attempt(trace: TraceID, number: int, steps: int = 3) -> Sequence[Span]:
    """One operation with its steps, in the order in which they end: the operation last."""
    id_ = random_span_id()
    start_ns = number * 1_000
    below = [
        Span(f"step {i}", trace, random_span_id(), id_, id_, start_ns + i, start_ns + i + 1, {})
        for i in range(steps)
    ]
    return [*below, Span(f"prepare {number}", trace, id_, ROOT, id_, start_ns, start_ns + 900, {})]


def root(trace: TraceID) -> Span:
    return Span("claim", trace, ROOT, None, ROOT, 0, 2_000, {})


def remember(ring: TraceRecorder, spans: Sequence[Span]) -> None:
    for span in spans:
        ring.add(span)


def test_the_512_most_recently_touched_traces_are_there_newest_first() -> None:
    ring = TraceRecorder()
    for number in range(recorder.MAX_TRACES + 10):
        remember(ring, attempt(trace_id(number), 1))
    remember(ring, [root(trace_id(10))])

    kept = [trace.id for trace in ring.traces()]
    assert len(kept) == recorder.MAX_TRACES
    assert kept[0] == trace_id(10)
    assert kept[1] == trace_id(recorder.MAX_TRACES + 9)
    assert ring.trace(trace_id(9)) is None


def test_a_claim_that_is_retried_for_days_keeps_its_root_first_and_newest_attempts() -> None:
    ring = TraceRecorder()
    trace = trace_id(1)
    remember(ring, attempt(trace, 1))
    remember(ring, [root(trace)])
    for number in range(2, 500):
        remember(ring, attempt(trace, number))

    found = ring.trace(trace)
    assert found is not None
    names = [span.name for span in found.spans]
    assert len(names) <= recorder.MAX_SPANS_PER_TRACE
    assert {"claim", "prepare 1", "prepare 499", "prepare 498"} <= set(names)
    assert found.omitted == 499 * 4 + 1 - len(names)


def test_a_member_of_a_domain_that_waits_for_days_stays_and_what_it_did_stays_within_bounds() -> (
    None
):
    ring = TraceRecorder()
    trace, member = trace_id(1), trace_ids.span_id("member")
    ring.add(Span("wait domain 0", trace, random_span_id(), member, random_span_id(), 0, 1, {}))
    ring.add(Span("member", trace, member, ROOT, ROOT, 0, 1, {}))
    for number in range(1, 1000):
        id_ = random_span_id()
        ring.add(Span(f"wait domain {number}", trace, id_, member, id_, number, number + 1, {}))

    found = ring.trace(trace)
    assert found is not None
    names = {span.name for span in found.spans}
    assert len(found.spans) == recorder.MAX_SPANS_PER_TRACE
    assert {"member", "wait domain 0", "wait domain 999", "wait domain 998"} <= names


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=60))
def test_a_span_that_is_kept_has_its_parent_or_hangs_below_the_root(
    work: list[tuple[int, int]],
) -> None:
    ring = TraceRecorder()
    for number, (claim, steps) in enumerate(work):
        remember(ring, attempt(trace_id(claim), number, steps))

    assert {trace.id for trace in ring.traces()} == {trace_id(claim) for claim, _ in work}
    for trace in ring.traces():
        present: set[SpanID] = {span.id for span in trace.spans}
        assert all(span.parent in {ROOT, *present} for span in trace.spans)
        assert [span.start_ns for span in trace.spans] == sorted(s.start_ns for s in trace.spans)


def test_many_long_traces_together_stay_within_the_memory_they_are_given() -> None:
    ring = TraceRecorder()
    for number in range(recorder.MAX_TRACES):
        for attempt_number in range(10):
            remember(ring, attempt(trace_id(number), attempt_number, steps=9))

    assert sum(len(trace.spans) for trace in ring.traces()) <= recorder.MAX_SPANS
