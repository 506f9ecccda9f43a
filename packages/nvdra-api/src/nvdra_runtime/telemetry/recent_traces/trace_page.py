# SPDX-License-Identifier: Apache-2.0
"""Renders traces as HTML pages. A page is self-contained, has no script, and escapes every value.

`trace_view` arranges the spans; `waterfall` renders the same as text.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Final

from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.recent_traces import trace_view
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.recent_traces.trace_view import Row, Section, TraceSummary
from nvdra_runtime.telemetry.spans import Failure, Span

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #5d6772; --line: #e3e7eb; --back: #fff;
  --bar: #76b900; --wait: #e0a100; --bad: #d1242f; --soft: #f4f6f8; --grid: #dfe4e9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --dim: #93a0ad; --line: #2b323a;
  --back: #14181c; --bad: #ff6b62; --soft: #1d2329; --grid: #323a43; }
  .tag.bad { color: #2b0906 !important; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 78rem; background: var(--back);
  color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .25rem; font-size: 1.35rem; font-weight: 600; overflow-wrap: anywhere; }
a { color: inherit; }
code, .number { font-family: ui-monospace, monospace; font-size: .92em;
  font-variant-numeric: tabular-nums; }
code { overflow-wrap: anywhere; }
nav { margin-top: .25rem; } nav a { margin-right: 1rem; }
.dim, time, .note, .axis { color: var(--dim); }
.tag { display: inline-block; padding: 0 .55rem; border-radius: 1rem; background: var(--bar);
  color: #10240a; font-size: .8rem; font-weight: 600; vertical-align: .1em; }
.tag.bad { background: var(--bad); color: #fff; }
.tag.open { background: var(--wait); color: #241a00; }
.verdict { margin: 1rem 0 0; padding: .6rem .9rem; border-left: 4px solid var(--bad);
  background: var(--soft); overflow-wrap: anywhere; }
.part { margin-top: 1.75rem; } .part:not([open]) { margin-top: .25rem; }
.part:not([open]) .axis { visibility: hidden; }
.line { display: grid; grid-template-columns: 15rem minmax(0, 1fr) 6.5rem; gap: 0 1rem;
  align-items: center; padding: .2rem 0; }
summary { list-style: none; cursor: pointer; }
summary::-webkit-details-marker { display: none; }
summary:hover { background: var(--soft); }
.head { border-bottom: 1px solid var(--line); font-weight: 600; }
.head .name::before, .row .name::before { content: "\\25b8"; display: inline-block;
  width: 1rem; color: var(--dim); }
details[open] > .head .name::before, details[open] > .row .name::before { content: "\\25be"; }
.axis { display: flex; justify-content: space-between; font-size: .8rem; font-weight: 400; }
.step { border-bottom: 1px solid var(--line); }
.name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.track { position: relative; height: 1rem; border-radius: 3px; background-color: var(--soft);
  background-image: linear-gradient(to right, var(--grid) 1px, transparent 1px);
  background-size: 25% 100%; overflow: hidden; }
.track i { position: absolute; top: 0; bottom: 0; min-width: 3px; border-radius: 3px;
  background: var(--bar); }
.wait .track i { background: var(--wait); }
.bad .track i { background: var(--bad); }
.bad .name, .why { color: var(--bad); }
.number { text-align: right; white-space: nowrap; }
.why, .note { grid-column: 1 / -1; padding-left: 1rem; overflow-wrap: anywhere; font-size: .95em; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem 1rem;
  margin: .25rem 0 .75rem; padding-left: 1rem; font-size: .9em; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
table { width: 100%; margin-top: 1rem; border-collapse: collapse; }
th { color: var(--dim); font-weight: 400; text-align: left; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
@media (max-width: 50rem) {
  body { padding: 1rem 1rem 3rem; }
  .line { grid-template-columns: minmax(0, 1fr) auto; }
  .line .track, .line .axis { grid-column: 1 / -1; grid-row: 2; }
  dl { grid-template-columns: minmax(0, 1fr); } dd { margin: 0 0 .25rem 1rem; }
  thead { display: none; }
  tr { display: flex; flex-wrap: wrap; gap: 0 1rem; padding: .5rem 0;
    border-bottom: 1px solid var(--line); }
  td { padding: 0; border: 0; } td.id { flex-basis: 100%; color: var(--dim); }
}
"""

_OPEN_SECTIONS: Final = 2
"""How many of the newest sections are open, besides the first ones. The others are folded."""


def render(trace: Trace) -> str:
    """Render the waterfall of a trace. A click on a row shows its attributes."""
    line = trace_view.summarize(trace)
    parts = trace_view.build_sections(trace)
    failure = trace_view.newest_failure(trace)
    shown_failures = {_failure_text(failure)} if failure else set()
    duration = trace_view.format_duration(line.seconds)
    body = [
        f"<h1>{escape(line.name)} {escape(line.subject)} {_tag(line)}</h1>",
        f'<div class="dim">trace <code>{escape(line.trace)}</code>'
        f"{f' on {escape(line.node)}' if line.node else ''}, from "
        f"{_time(trace_view.utc_time(line.start_ns))}, {duration}</div>",
        '<nav class="dim"><a href="/debug/traces">all traces</a>'
        '<a href="?format=json">JSON</a><a href="?format=text">text</a></nav>',
        _failure_banner(failure),
        *(
            _section(
                part, shown_failures, is_open=index <= 1 or index > len(parts) - 1 - _OPEN_SECTIONS
            )
            for index, part in enumerate(parts)
        ),
    ]
    if trace.omitted:
        body.append(f"<p>{trace.omitted} spans of older attempts are no longer in memory.</p>")
    return _document(f"{line.name} {line.subject}", body)


def render_index(traces: Sequence[Trace], now: datetime) -> str:
    """Render the list of traces, in the order given."""
    rows = [_index_row(trace_view.summarize(trace), now) for trace in traces]
    words = ("claim or domain", "trace", "began", "took", "last outcome")
    head = f"<thead><tr>{''.join(f'<th>{word}' for word in words)}</tr></thead>"
    empty = "<p>There is no trace yet. The first claim or domain adds one.</p>"
    table = f"<table>{head}{''.join(rows)}</table>" if rows else empty
    count = f'<div class="dim">the last {len(traces)}, newest first</div>' if rows else ""
    return _document("Traces", ["<h1>Traces</h1>", count, table])


def _document(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _index_row(line: TraceSummary, now: datetime) -> str:
    age = trace_view.format_duration(
        max(0.0, (now - trace_view.utc_time(line.start_ns)).total_seconds())
    )
    name = escape(line.subject or line.name)
    duration = trace_view.format_duration(line.seconds)
    return (
        f'<tr><td><a href="/debug/traces/{escape(line.trace)}">{name}</a>'
        f'<td class="id"><code>{escape(line.trace)}</code><td>{age} ago'
        f'<td><span class="number">{duration}</span><td>{_tag(line)}</tr>'
    )


def _tag(line: TraceSummary) -> str:
    word = line.reason or line.outcome or "in progress"
    kind = "bad" if line.reason else "good" if line.outcome else "open"
    return f'<span class="tag {kind}">{escape(word)}</span>'


def _failure_banner(failure: Failure | None) -> str:
    if failure is None:
        return ""
    return f'<div class="verdict">{escape(_failure_text(failure))}</div>'


def _failure_text(failure: Failure) -> str:
    return f"{failure.reason}: {failure.message}"


def _section(section: Section, shown_failures: set[str], *, is_open: bool) -> str:
    """Render a section below its time scale. Attempts that failed alike share one row."""
    end = trace_view.format_duration(section.seconds)
    middle = trace_view.format_duration(section.seconds / 2)
    head = (
        f'<summary class="line head"><span class="name">{escape(section.title)}</span>'
        f'<span class="axis"><span>0</span><span>{middle}</span><span>{end}</span></span>'
        f'<span class="number">{end}</span></summary>'
    )
    rows = "".join(
        _row(group, shown_failures) for group in trace_view.group_repeated_failures(section.rows)
    )
    return f'<details class="part"{" open" if is_open else ""}>{head}{rows}</details>'


def _row(group: Sequence[Row], shown_failures: set[str]) -> str:
    """Render one row. The message of a failure is shown only in the first row that has it."""
    first = group[0]
    span = first.span
    is_single = len(group) == 1
    duration = trace_view.format_duration(span.seconds) if is_single else f"{len(group)} times"
    notes = "".join(f'<span class="note">{escape(note)}</span>' for note in _notes(span))
    return (
        f'<details class="step {_kind(span)}"><summary class="line row">'
        f'<span class="name" style="padding-left:{first.depth * 1.1:.1f}rem">'
        f"{escape(trace_view.label(span, group[-1].span))}</span>"
        f'<span class="track">{"".join(map(_bar, group))}</span>'
        f'<span class="number">{duration}</span>{_why(span.failure, shown_failures)}{notes}'
        f"</summary>{''.join(_attributes(row.span) for row in group)}</details>"
    )


def _notes(span: Span) -> Iterator[str]:
    if keys.HOLDER in span.attributes:
        yield f"for claim {span.attributes[keys.HOLDER]}"
    yield from trace_view.notes(span)


def _kind(span: Span) -> str:
    if span.failure is not None:
        return "bad"
    return "wait" if span.name.startswith("wait") else "good"


def _bar(row: Row) -> str:
    """Render a bar. Even a short bar at the end stays inside its track."""
    left, width = row.offset * 100, row.length * 100
    return f'<i style="left:min({left:.2f}%,100% - 3px);width:{width:.2f}%"></i>'


def _why(failure: Failure | None, shown_failures: set[str]) -> str:
    if failure is None:
        return ""
    text = _failure_text(failure)
    shown = f"{failure.reason}, as above" if text in shown_failures else text
    shown_failures.add(text)
    return f'<span class="why">{escape(shown)}</span>'


def _attributes(span: Span) -> str:
    pairs = [("started", trace_view.utc_time(span.start_ns).isoformat()), ("span", span.id)]
    pairs += [
        (key, trace_view.format_value(value)) for key, value in span.exported_attributes.items()
    ]
    return f"<dl>{''.join(f'<dt>{escape(k)}<dd>{escape(v)}' for k, v in pairs)}</dl>"


def _time(moment: datetime) -> str:
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'
