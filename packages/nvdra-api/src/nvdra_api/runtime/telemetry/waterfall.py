"""A trace as text: bars on a terminal, what took how long, and why it failed.

Arranged by `story`; the same picture for browsers is `page`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain

from nvdra_api.runtime.telemetry import story
from nvdra_api.runtime.telemetry.recorder import Trace
from nvdra_api.runtime.telemetry.spans import Span
from nvdra_api.runtime.telemetry.story import Row, Section, Summary

_BAR = 40
_NAME = 24
_TIME = 11


def text(trace: Trace) -> str:
    """The waterfall of a trace, about 100 columns wide, lines ended by newlines."""
    told: set[str] = set()
    parts = [_head(story.summary(trace))]
    parts += [_section(part, told) for part in story.sections(trace)]
    if trace.omitted:
        parts.append([f"{trace.omitted} spans of older attempts are no longer kept"])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def section(section: Section) -> str:
    """One part of a trace, likewise."""
    return "\n".join(_section(section, set())) + "\n"


def index(traces: Sequence[Trace], now: datetime) -> str:
    """One line for each trace, in the order given."""
    lines = [story.summary(trace) for trace in traces]
    return "".join(f"{_index_line(line, now)}\n" for line in lines) or "no trace yet\n"


def _index_line(line: Summary, now: datetime) -> str:
    age = story.duration(max(0.0, (now - story.moment(line.start_ns)).total_seconds()))
    outcome = line.reason or line.outcome or "in progress"
    took = story.duration(line.seconds)
    return f"{line.trace}  {age:>12} ago {took:>12}  {outcome:<16} {line.subject or line.name}"


def _head(line: Summary) -> list[str]:
    outcome = ": ".join(filter(None, (line.outcome or "in progress", line.reason)))
    started = story.moment(line.start_ns).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    where = f" on {line.node}" if line.node else ""
    return [
        f"{line.name} {line.subject}{where}: {outcome}",
        f"trace {line.trace}, from {started} UTC, {story.duration(line.seconds)}",
    ]


def _section(section: Section, told: set[str]) -> list[str]:
    end = story.duration(section.seconds)
    scale = f"{section.title:<{_NAME}} |0{end:>{_BAR - 1}}|"
    return [scale, *chain.from_iterable(_row(alike, told) for alike in story.alike(section.rows))]


def _row(alike: Sequence[Row], told: set[str]) -> Iterator[str]:
    row = alike[0]
    indent = "  " * row.depth
    name = _cut(indent + story.title(row.span), _NAME)
    is_one = len(alike) == 1
    took = story.duration(row.span.seconds) if is_one else f"{len(alike)} times"
    shown = story.facts(row.span) if is_one else {}
    facts = " ".join(f"{key}={value}" for key, value in shown.items())
    yield f"{name:<{_NAME}} |{_bars(alike)}|{took:>{_TIME}}  {facts}".rstrip()
    yield from (f"{indent}  {line}" for line in _notes(row.span, told))


def _notes(span: Span, told: set[str]) -> Iterator[str]:
    """What a bar cannot say; why it failed only where nobody above has said it."""
    if span.failure is not None:
        why = f"! {span.failure.reason}: {span.failure.message}"
        yield f"! {span.failure.reason}, as above" if why in told else why
        told.add(why)
    yield from (f"* {note}" for note in story.notes(span))


def _bars(alike: Sequence[Row]) -> str:
    cells = [" "] * _BAR
    for row in alike:
        begin = min(int(row.offset * _BAR), _BAR - 1)
        length = max(1, min(round(row.length * _BAR), _BAR - begin))
        cells[begin : begin + length] = "█" * length
    return "".join(cells)


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
