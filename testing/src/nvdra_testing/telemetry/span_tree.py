# SPDX-License-Identifier: Apache-2.0
"""Received spans as a tree."""

from collections.abc import Sequence

from nvdra_testing.telemetry.otlp_receiver import Span


def children(spans: Sequence[Span], parent: Span) -> list[Span]:
    """A span's children, by start time."""
    children = [span for span in spans if span.parent_id == parent.span_id]
    return sorted(children, key=lambda span: span.start_ns)


def only_span(spans: Sequence[Span], name: str) -> Span:
    """The only span of that name."""
    (found,) = [span for span in spans if span.name == name]
    return found


def orphans(spans: Sequence[Span]) -> list[str]:
    """The names of spans whose parent was not received."""
    known = {span.span_id for span in spans} | {""}
    return [span.name for span in spans if span.parent_id not in known]
