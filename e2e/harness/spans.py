"""Spans that a collector received, looked at as the tree that they should be."""

from collections.abc import Sequence

from otlp import Span


def below(spans: Sequence[Span], parent: Span) -> list[Span]:
    """A span's children in the order of their start."""
    children = [span for span in spans if span.parent_id == parent.span_id]
    return sorted(children, key=lambda span: span.start_ns)


def only(spans: Sequence[Span], name: str) -> Span:
    """The one span of that name."""
    (found,) = [span for span in spans if span.name == name]
    return found


def orphans(spans: Sequence[Span]) -> list[str]:
    """The names of spans whose parent is not there, and is not nothing either."""
    known = {span.span_id for span in spans} | {""}
    return [span.name for span in spans if span.parent_id not in known]
