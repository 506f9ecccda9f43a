# SPDX-License-Identifier: Apache-2.0
"""What several processes remember of one trace, put together again."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import DomainUID, SpanID, TraceID
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.keys import ABSENT_PEERS, K8S_NODE_NAME, Outcome
from nvdra_runtime.telemetry.recent_traces import trace_view
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.spans import Failure, Span, SpanEvent
from nvdra_runtime.telemetry.trace_ids import Link

from e2e.demo import trace_merge

UID = DomainUID("11111111-2222-3333-4444-555555555555")
TRACE = trace_ids.trace_id(UID)
START_NS = 1_770_000_000_000_000_000


@st.composite
def spans(draw: st.DrawFn) -> Sequence[Span]:
    """Spans of a trace with parents among them, from the same microsecond at the earliest."""
    count = draw(st.integers(1, 8))
    ids = [SpanID(f"{number:016x}") for number in range(1, count + 1)]
    return [
        draw(_span(id_, SpanID(draw(st.sampled_from(ids[:number]))) if number else None))
        for number, id_ in enumerate(ids)
    ]


@st.composite
def _span(draw: st.DrawFn, id_: SpanID, parent: SpanID | None) -> Span:
    microseconds = st.integers(0, 10**9)
    begin = START_NS + 1000 * draw(microseconds)
    peers = tuple(draw(st.lists(st.sampled_from(["node-1", "node-2"]))))
    failure = Failure(Outcome.RETRYABLE, "DaemonNotReady", "it has not said READY yet")
    return Span(
        name=draw(st.sampled_from(["member", "wait domain", "reconcile"])),
        trace=TRACE,
        id=id_,
        parent=parent,
        operation=id_,
        start_ns=begin,
        end_ns=begin + 1000 * draw(microseconds),
        attributes={ABSENT_PEERS: peers, "nvdra.index": draw(st.integers(0, 17))},
        events=(SpanEvent("peers", begin, {ABSENT_PEERS: peers}),) if peers else (),
        links=draw(st.sampled_from([(), (Link(TraceID("1" * 32), SpanID("2" * 16), "claim"),)])),
        failure=draw(st.sampled_from([None, failure])),
    )


@given(spans(), st.data())
def test_parts_that_several_processes_give_are_the_trace_that_they_were_parts_of(
    whole: Sequence[Span], data: st.DataObject
) -> None:
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(whole), max_size=len(whole)))
    parts = [
        tuple(span for span, owner in zip(whole, owners, strict=True) if owner == process)
        for process in range(3)
    ]
    documents = [
        json.dumps(trace_view.trace_json(Trace(TRACE, part, omitted=1))) for part in parts if part
    ]
    found = trace_merge.merge(json.loads(each) for each in documents)
    assert found.id == TRACE
    assert {span.id: span for span in found.spans} == {span.id: span for span in whole}
    assert [span.start_ns for span in found.spans] == sorted(span.start_ns for span in whole)
    assert found.omitted == len(documents)


def test_a_trace_that_runs_over_several_nodes_is_not_called_that_of_one() -> None:
    def told(number: int, node: str) -> Span:
        return Span(
            name="member",
            trace=TRACE,
            id=SpanID(f"{number:016x}"),
            parent=None,
            operation=SpanID(f"{number:016x}"),
            start_ns=START_NS,
            end_ns=START_NS + 1000,
            attributes={K8S_NODE_NAME: node},
        )

    alone = trace_view.summarize(Trace(TRACE, (told(1, "node-1"), told(2, "node-1")), 0))
    together = trace_view.summarize(Trace(TRACE, (told(1, "node-1"), told(2, "node-2")), 0))
    assert (alone.node, together.node) == ("node-1", "")
