# SPDX-License-Identifier: Apache-2.0
"""The critical path of a domain's formation.

A domain is formed when its last member is, and a member when its last step ends. Steps that run in
parallel with the path cost no time, and a span that waits is not work.
"""

from collections.abc import Iterable, Sequence

from nvdra_runtime.telemetry.recent_traces import trace_view
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.recent_traces.trace_view import Section, SpanNode
from nvdra_runtime.telemetry.spans import Span

MEMBER, RECONCILE, WAIT = "member", "reconcile", "wait domain"


def section(trace: Trace) -> Section | None:
    """The path on the time scale of the domain's formation; None if the domain was not formed.

    The gaps between two bars are work outside the driver: of the user who creates the pods, of the
    scheduler, the kubelet and the container runtime.
    """
    top = next((node for node in trace_view.build_tree(trace) if node.span.parent is None), None)
    members = [node for node in top.children if node.span.name == MEMBER] if top else []
    if top is None or not members:
        return None
    last = max(members, key=lambda node: node.span.end_ns)
    rounds = [node for node in top.children if node.span.name == RECONCILE]
    before = [node for node in rounds if node.span.end_ns <= last.span.start_ns]
    after = [node for node in rounds if node.span.start_ns >= last.span.end_ns]
    path = [
        *(step for node in before[-1:] for step in chain(_leaves(node))),
        *chain(work(_leaves(last))),
        *(step for node in after[-1:] for step in chain(_leaves(node))),
    ]
    inside = [
        (span, 0)
        for span in path
        if top.span.start_ns <= span.start_ns and span.end_ns <= top.span.end_ns
    ]
    title = f"critical path, {trace_view.title(last.span).removeprefix(MEMBER).strip()}"
    return trace_view.build_section(title, [top.span], inside)


def work(spans: Iterable[Span]) -> Sequence[Span]:
    """The spans without waits, and without spans that lie within a wait."""
    known = list(spans)
    waits = [span for span in known if span.name == WAIT]
    return [
        span
        for span in known
        if not any(span.start_ns <= wait.start_ns and wait.end_ns <= span.end_ns for wait in waits)
    ]


def chain(spans: Iterable[Span]) -> Sequence[Span]:
    """The chain back from the span that ended last, each time to the last that ended before it."""
    left = sorted(spans, key=lambda span: span.end_ns)
    path: list[Span] = []
    while left:
        step = left.pop()
        path.append(step)
        while left and left[-1].end_ns > step.start_ns:
            left.pop()
    return path[::-1]


def _leaves(node: SpanNode) -> Sequence[Span]:
    if not node.children:
        return [node.span]
    return [span for child in node.children for span in _leaves(child)]
