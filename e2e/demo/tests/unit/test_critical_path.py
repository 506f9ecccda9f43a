# SPDX-License-Identifier: Apache-2.0
"""Which steps a domain's formation hung on."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry.keys import K8S_NODE_NAME
from nvdra_runtime.telemetry.recent_traces import waterfall
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.spans import AttributeValue, Span

from e2e.demo import critical_path

TRACE = TraceID("1" * 32)
MS = 1_000_000


def span(number: int, name: str, start: int, end: int, parent: int = 0, node: str = "") -> Span:
    """A span, in milliseconds."""
    attributes: dict[str, AttributeValue] = {K8S_NODE_NAME: node} if node else {}
    return Span(
        name=name,
        trace=TRACE,
        id=SpanID(f"{number:016x}"),
        parent=SpanID(f"{parent:016x}") if parent else None,
        operation=SpanID(f"{number:016x}"),
        start_ns=start * MS,
        end_ns=end * MS,
        attributes=attributes,
    )


FORMED = (
    span(1, "compute domain", 0, 2000),
    span(2, "reconcile", 0, 120, 1),
    span(3, "ensure daemonset", 5, 50, 2),
    span(4, "ensure claim templates", 50, 110, 2),
    span(10, "member", 500, 1900, 1, "node-1"),
    span(11, "schedule daemon", 500, 900, 10),
    span(12, "prepare", 500, 1900, 10),
    span(13, "wait domain", 520, 1890, 10),
    span(14, "prepare", 910, 940, 10),
    span(15, "start daemon", 1600, 1620, 10),
    span(16, "imex ready", 1700, 1880, 10),
    span(20, "member", 500, 1500, 1, "node-2"),
    span(21, "imex ready", 1300, 1490, 20),
    span(30, "reconcile", 1600, 1700, 1),
    span(31, "write status", 1610, 1700, 30),
    span(40, "reconcile", 1910, 2000, 1),
    span(41, "write status", 1920, 2000, 40),
)


def test_the_path_leads_over_the_member_that_was_last_and_over_no_wait() -> None:
    path = critical_path.section(Trace(TRACE, FORMED, 0))
    assert path is not None
    assert path.title == "critical path, node-1"
    assert [row.span.id[-2:] for row in path.rows] == ["03", "04", "0b", "0e", "0f", "10", "29"]
    text = waterfall.render_section(path).splitlines()
    assert len(text) == 1 + len(path.rows)
    assert text[0].startswith("critical path, node-1    |0")
    assert "wait domain" not in "".join(text)


def test_a_domain_without_members_has_no_path() -> None:
    assert critical_path.section(Trace(TRACE, FORMED[:4], 0)) is None
    assert critical_path.section(Trace(TRACE, FORMED[1:4], 0)) is None


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=12))
def test_the_steps_of_a_path_follow_one_another_to_the_last_end(
    times: Sequence[tuple[int, int]],
) -> None:
    spans = [
        span(number, "step", start, start + length)
        for number, (start, length) in enumerate(times, 1)
    ]
    path = critical_path.chain(spans)
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(path))
    assert bool(path) == bool(spans)
    if path:
        assert path[-1].end_ns == max(each.end_ns for each in spans)
