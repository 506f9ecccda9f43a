# SPDX-License-Identifier: Apache-2.0
"""Renders traces as text for a terminal: a bar for each span, its duration, and why it failed.

`trace_view` arranges the spans; `trace_page` renders the same as HTML.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain

from nvdra_api import terminal_text

from nvdra_runtime.telemetry.recent_traces import trace_view
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.recent_traces.trace_view import Row, Section, TraceSummary
from nvdra_runtime.telemetry.spans import Span

_BAR_WIDTH = 40
_NAME_WIDTH = 24
_DURATION_WIDTH = 11


def render(trace: Trace) -> str:
    """Render the waterfall of a trace, about 100 columns wide."""
    shown_failures: set[str] = set()
    parts = [_head(trace_view.summarize(trace))]
    parts += [_section(part, shown_failures) for part in trace_view.build_sections(trace)]
    if trace.omitted:
        parts.append([f"{trace.omitted} spans of older attempts are no longer in memory"])
    return "\n\n".join("\n".join(map(terminal_text.line, part)) for part in parts) + "\n"


def render_section(section: Section) -> str:
    """Render one section of a trace."""
    return "\n".join(map(terminal_text.line, _section(section, set()))) + "\n"


def render_index(traces: Sequence[Trace], now: datetime) -> str:
    """Render one line for each trace, in the order given."""
    lines = [_index_line(trace_view.summarize(trace), now) for trace in traces]
    return "".join(f"{terminal_text.line(line)}\n" for line in lines) or "no trace yet\n"


def _index_line(line: TraceSummary, now: datetime) -> str:
    age = trace_view.format_duration(
        max(0.0, (now - trace_view.utc_time(line.start_ns)).total_seconds())
    )
    outcome = line.reason or line.outcome or "in progress"
    took = trace_view.format_duration(line.seconds)
    return f"{line.trace}  {age:>12} ago {took:>12}  {outcome:<16} {line.subject or line.name}"


def _head(line: TraceSummary) -> list[str]:
    outcome = ": ".join(filter(None, (line.outcome or "in progress", line.reason)))
    started = trace_view.utc_time(line.start_ns).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    where = f" on {line.node}" if line.node else ""
    return [
        f"{line.name} {line.subject}{where}: {outcome}",
        f"trace {line.trace}, from {started} UTC, {trace_view.format_duration(line.seconds)}",
    ]


def _section(section: Section, shown_failures: set[str]) -> list[str]:
    end = trace_view.format_duration(section.seconds)
    scale = f"{section.title:<{_NAME_WIDTH}} |0{end:>{_BAR_WIDTH - 1}}|"
    groups = trace_view.group_repeated_failures(section.rows)
    return [scale, *chain.from_iterable(_row(group, shown_failures) for group in groups)]


def _row(group: Sequence[Row], shown_failures: set[str]) -> Iterator[str]:
    row = group[0]
    indent = "  " * row.depth
    name = _cut(indent + trace_view.title(row.span), _NAME_WIDTH)
    is_single = len(group) == 1
    duration = trace_view.format_duration(row.span.seconds) if is_single else f"{len(group)} times"
    shown = trace_view.display_attributes(row.span) if is_single else {}
    attributes = " ".join(f"{key}={value}" for key, value in shown.items())
    columns = f"{name:<{_NAME_WIDTH}} |{_bars(group)}|{duration:>{_DURATION_WIDTH}}"
    yield f"{columns}  {attributes}".rstrip()
    yield from (f"{indent}  {line}" for line in _notes(row.span, shown_failures))


def _notes(span: Span, shown_failures: set[str]) -> Iterator[str]:
    """The failure, events and links of a span. A failure's message is shown once."""
    if span.failure is not None:
        why = f"! {span.failure.reason}: {span.failure.message}"
        yield f"! {span.failure.reason}, as above" if why in shown_failures else why
        shown_failures.add(why)
    yield from (f"* {note}" for note in trace_view.notes(span))


def _bars(group: Sequence[Row]) -> str:
    cells = [" "] * _BAR_WIDTH
    for row in group:
        begin = min(int(row.offset * _BAR_WIDTH), _BAR_WIDTH - 1)
        length = max(1, min(round(row.length * _BAR_WIDTH), _BAR_WIDTH - begin))
        cells[begin : begin + length] = "█" * length
    return "".join(cells)


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
