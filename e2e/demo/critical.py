"""The steps that a domain's formation hung on: each began where nothing else was left to wait for.

A domain is formed when its last member is, and that one when its last step is. What goes on beside
them costs nothing, and a span that waits says only that somebody else works.
"""

from collections.abc import Iterable, Sequence

from nvdra_api.runtime.telemetry import story
from nvdra_api.runtime.telemetry.recorder import Trace
from nvdra_api.runtime.telemetry.spans import Span
from nvdra_api.runtime.telemetry.story import Node, Section

MEMBER, RECONCILE, WAIT = "member", "reconcile", "wait domain"


def section(trace: Trace) -> Section | None:
    """The path on the scale of the domain's formation; None where it was not formed.

    Between two bars work was done that no part of the driver sees: by people, who make the pods, by
    the scheduler, by the kubelet and the container runtime.
    """
    top = next((node for node in story.tops(trace) if node.span.parent is None), None)
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
    title = f"critical path, {story.title(last.span).removeprefix(MEMBER).strip()}"
    return story.section(title, [top.span], inside)


def work(spans: Iterable[Span]) -> Sequence[Span]:
    """Without the waits, and without what goes on for as long as one."""
    known = list(spans)
    waits = [span for span in known if span.name == WAIT]
    return [
        span
        for span in known
        if not any(span.start_ns <= wait.start_ns and wait.end_ns <= span.end_ns for wait in waits)
    ]


def chain(spans: Iterable[Span]) -> Sequence[Span]:
    """From the one that ended last back, each time to the one that had ended last by then."""
    left = sorted(spans, key=lambda span: span.end_ns)
    path: list[Span] = []
    while left:
        step = left.pop()
        path.append(step)
        while left and left[-1].end_ns > step.start_ns:
            left.pop()
    return path[::-1]


def _leaves(node: Node) -> Sequence[Span]:
    if not node.children:
        return [node.span]
    return [span for child in node.children for span in _leaves(child)]
