"""Traces as pages for a browser: self-contained, without a script, everything escaped.

Arranged by `story`; the same picture for terminals is `waterfall`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Final

from nvdra_api.runtime.telemetry import story
from nvdra_api.runtime.telemetry.recorder import Trace
from nvdra_api.runtime.telemetry.spans import Failure, Span, SpanEvent
from nvdra_api.runtime.telemetry.story import Row, Section, Summary

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #66707b; --line: #e3e7eb; --back: #fff;
  --bar: #76b900; --bad: #d1242f; --soft: #f6f8f9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --dim: #93a0ad; --line: #2b323a;
  --back: #14181c; --bar: #76b900; --bad: #ff6b62; --soft: #1b2026; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 78rem; background: var(--back);
  color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.35rem; font-weight: 600; }
h2 { display: flex; justify-content: space-between; margin: 2rem 0 .25rem; font-size: .95rem;
  font-weight: 600; }
h2 small, .dim, time { color: var(--dim); font-weight: 400; }
code, .number { font-family: ui-monospace, monospace; font-size: .92em;
  font-variant-numeric: tabular-nums; }
a { color: inherit; }
.tag { display: inline-block; margin-left: .5rem; padding: 0 .55rem; border-radius: 1rem;
  background: var(--bar); color: #10240a; font-size: .8rem; font-weight: 600; }
.tag.bad { background: var(--bad); color: #fff; }
.rows { border-top: 1px solid var(--line); }
details { border-bottom: 1px solid var(--line); }
summary { display: grid; grid-template-columns: 15rem 1fr 6.5rem; gap: 0 1rem; align-items: center;
  padding: .2rem 0; list-style: none; cursor: pointer; }
summary::-webkit-details-marker { display: none; }
summary:hover { background: var(--soft); }
.name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.track { position: relative; height: 1rem; background: var(--soft); border-radius: 3px; }
.track i { position: absolute; top: 0; bottom: 0; min-width: 2px; border-radius: 3px;
  background: var(--bar); }
.bad .track i { background: var(--bad); }
.bad .name, .why { color: var(--bad); }
.number { text-align: right; }
.why { grid-column: 1 / -1; }
td .tag { margin: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem;
  margin: .25rem 0 .75rem; padding-left: 1rem; font-size: .9em; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
table { width: 100%; margin-top: 1rem; border-collapse: collapse; }
th { color: var(--dim); font-weight: 400; text-align: left; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
"""


def html(trace: Trace) -> str:
    """The waterfall of a trace; a click on a row shows its attributes."""
    line = story.summary(trace)
    started = story.moment(line.start_ns)
    body = [
        f"<h1>{escape(line.name)} {escape(line.claim)}{_tag(line)}</h1>",
        f'<div class="dim">trace <code>{escape(line.trace)}</code>'
        f"{f' on {escape(line.node)}' if line.node else ''}, from {_time(started)}, "
        f"{story.duration(line.seconds)}. "
        '<a href="?format=json">JSON</a> <a href="?format=text">text</a> '
        '<a href="/debug/traces">all traces</a></div>',
        *map(_section, story.sections(trace)),
    ]
    if trace.omitted:
        body.append(f"<p>{trace.omitted} spans of older attempts are no longer kept.</p>")
    return _document(f"{line.name} {line.claim}", body)


def index(traces: Sequence[Trace], now: datetime) -> str:
    """The list of remembered traces, in the order given."""
    rows = [_index_row(story.summary(trace), now) for trace in traces]
    head = "".join(f"<th>{word}" for word in ("claim", "trace", "began", "took", "last outcome"))
    empty = "<p>No trace yet: one appears when the kubelet asks for a claim.</p>"
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else empty
    return _document("Traces", ["<h1>Traces</h1>", table])


def _document(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _index_row(line: Summary, now: datetime) -> str:
    age = story.duration(max(0.0, (now - story.moment(line.start_ns)).total_seconds()))
    name = escape(line.claim or line.name)
    return (
        f'<tr><td><a href="/debug/traces/{escape(line.trace)}">{name}</a>'
        f"<td><code>{escape(line.trace)}</code><td>{age} ago"
        f"<td><code>{story.duration(line.seconds)}</code><td>{_tag(line)}</tr>"
    )


def _tag(line: Summary) -> str:
    word = line.reason or line.outcome or "in progress"
    return f'<span class="tag{" bad" if line.reason else ""}">{escape(word)}</span>'


def _section(section: Section) -> str:
    rows = "".join(map(_row, section.rows))
    return (
        f"<h2>{escape(section.title)}<small>{story.duration(section.seconds)}</small></h2>"
        f'<div class="rows">{rows}</div>'
    )


def _row(row: Row) -> str:
    span = row.span
    indent = f"padding-left:{row.depth * 1.1:.1f}rem"
    return (
        f'<details class="{"bad" if span.failure else "good"}"><summary>'
        f'<span class="name" style="{indent}">{escape(span.name)}</span>'
        f'<span class="track"><i style="left:{row.offset * 100:.2f}%;'
        f'width:{row.length * 100:.2f}%"></i></span>'
        f'<span class="number">{story.duration(span.seconds)}</span>'
        f"{_why(span.failure, indent)}</summary>{_facts(span)}</details>"
    )


def _why(failure: Failure | None, indent: str) -> str:
    if failure is None:
        return ""
    words = f"{escape(failure.reason)}: {escape(failure.message)}"
    return f'<span class="why" style="{indent}">{words}</span>'


def _facts(span: Span) -> str:
    pairs = [("started", story.moment(span.start_ns).isoformat()), ("span", span.id)]
    pairs += [(key, str(value)) for key, value in span.attributes.items()]
    pairs += [(event.name, _moment(event, span)) for event in span.events]
    pairs += [(f"link ({link.why})", f"{link.trace} / {link.span}") for link in span.links]
    return f"<dl>{''.join(f'<dt>{escape(k)}<dd>{escape(v)}' for k, v in pairs)}</dl>"


def _moment(event: SpanEvent, span: Span) -> str:
    facts = "".join(f" {key}={value}" for key, value in story.facts(event).items())
    return f"after {story.duration((event.at_ns - span.start_ns) / 1e9)}{facts}"


def _time(moment: datetime) -> str:
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'
