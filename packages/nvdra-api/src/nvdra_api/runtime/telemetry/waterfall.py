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
    parts = [_head(story.summary(trace)), *map(_section, story.sections(trace))]
    if trace.omitted:
        parts.append([f"{trace.omitted} spans of older attempts are no longer kept"])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def index(traces: Sequence[Trace], now: datetime) -> str:
    """One line for each trace, in the order given."""
    lines = [story.summary(trace) for trace in traces]
    return "".join(f"{_index_line(line, now)}\n" for line in lines) or "no trace yet\n"


def _index_line(line: Summary, now: datetime) -> str:
    age = story.duration(max(0.0, (now - story.moment(line.start_ns)).total_seconds()))
    outcome = line.reason or line.outcome or "in progress"
    took = story.duration(line.seconds)
    return f"{line.trace}  {age:>12} ago {took:>12}  {outcome:<16} {line.claim or line.name}"


def _head(line: Summary) -> list[str]:
    outcome = ": ".join(filter(None, (line.outcome or "in progress", line.reason)))
    started = story.moment(line.start_ns).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    where = f" on {line.node}" if line.node else ""
    return [
        f"{line.name} {line.claim}{where}: {outcome}",
        f"trace {line.trace}, from {started} UTC, {story.duration(line.seconds)}",
    ]


def _section(section: Section) -> list[str]:
    end = story.duration(section.seconds)
    scale = f"{section.title:<{_NAME}} |0{end:>{_BAR - 1}}|"
    return [scale, *chain.from_iterable(map(_row, section.rows))]


def _row(row: Row) -> Iterator[str]:
    indent = "  " * row.depth
    name = _cut(indent + row.span.name, _NAME)
    took = story.duration(row.span.seconds)
    facts = " ".join(f"{key}={value}" for key, value in story.facts(row.span).items())
    yield f"{name:<{_NAME}} |{_bar(row)}|{took:>{_TIME}}  {facts}".rstrip()
    yield from (f"{indent}  {line}" for line in _notes(row.span))


def _notes(span: Span) -> Iterator[str]:
    """What a bar cannot say: why it failed, what happened on the way, where a link leads."""
    if span.failure is not None:
        yield f"! {span.failure.reason}: {span.failure.message}"
    for event in span.events:
        after = story.duration((event.at_ns - span.start_ns) / 1e9)
        facts = "".join(f" {key}={value}" for key, value in story.facts(event).items())
        yield f"* {event.name} after {after}{facts}"
    for link in span.links:
        yield f"> linked ({link.why}) to trace {link.trace}, span {link.span}"


def _bar(row: Row) -> str:
    begin = min(int(row.offset * _BAR), _BAR - 1)
    length = max(1, min(round(row.length * _BAR), _BAR - begin))
    return f"{' ' * begin}{'█' * length}".ljust(_BAR)


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
