# SPDX-License-Identifier: Apache-2.0
"""The page of a trace: what is coloured, folded, said once, and where a click leads."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.keys import Outcome
from nvdra_runtime.telemetry.recent_traces import trace_page
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.spans import Failure, Span, SpanEvent

TRACE = TraceID("3f0c1a527c1b4d0e8a550123456789ab")
BEGIN = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
BEGIN_NS = int(BEGIN.timestamp()) * 10**9
MS = 1_000_000
BUSY = Failure(Outcome.RETRYABLE, "LockTimeout", "gpu-0 is busy")

ROOT = Span(
    "claim",
    TRACE,
    trace_ids.span_id("claim"),
    None,
    trace_ids.span_id("claim"),
    BEGIN_NS,
    BEGIN_NS + 100 * MS,
    {
        "k8s.namespace.name": "ml",
        "k8s.resourceclaim.name": "train",
        "k8s.node.name": "node-a",
    },
)


def below(parent: Span, name: str, begin: float, end: float, **more: object) -> Span:
    """A child from `begin` to `end` milliseconds after the claim was made."""
    id_ = trace_ids.span_id(f"{parent.id} {name} {begin}")
    start_ns, end_ns = (BEGIN_NS + int(each * MS) for each in (begin, end))
    made = Span(name, TRACE, id_, parent.id, id_, start_ns, end_ns, {})
    return made._replace(**more)  # type: ignore[arg-type]  # fields by name


def attempt(number: int, begin: float, failure: Failure | None = None) -> Span:
    outcome = failure.outcome.value if failure else "success"
    attributes = {"nvdra.attempt": number, "nvdra.outcome": outcome}
    return below(ROOT, "prepare", begin, begin + 10, attributes=attributes, failure=failure)


def page(*spans: Span, omitted: int = 0) -> str:
    return trace_page.render(Trace(TRACE, (ROOT, *spans), omitted))


def rows(html: str) -> dict[str, str]:
    """The class of each row by the name of its span."""
    found = re.findall(r'<details class="step (\w+)">.*?rem">([^<]*)</span>', html)
    return {name: kind for kind, name in found}


def test_the_page_begins_with_the_claim_its_node_and_the_other_forms() -> None:
    html = page(attempt(1, 50))
    assert html.startswith('<!doctype html><html lang="en">')
    assert "<title>claim ml/train</title>" in html
    assert '<h1>claim ml/train <span class="tag good">success</span></h1>' in html
    assert (
        f"trace <code>{TRACE}</code> on node-a, from "
        '<time datetime="2026-11-05T12:00:00+00:00">2026-11-05 12:00:00 UTC</time>, 100 ms</div>'
    ) in html
    assert re.findall(r'href="([^"]*)"', html) == ["/debug/traces", "?format=json", "?format=text"]


@pytest.mark.parametrize(
    ("spans", "tag"),
    [
        ((), '<span class="tag open">in progress</span>'),
        ((attempt(1, 50),), '<span class="tag good">success</span>'),
        ((attempt(1, 50, BUSY),), '<span class="tag bad">LockTimeout</span>'),
        ((attempt(1, 20, BUSY), attempt(2, 50)), '<span class="tag good">success</span>'),
    ],
    ids=["in progress", "success", "failure", "success after a failure"],
)
def test_the_tag_tells_the_newest_outcome(spans: tuple[Span, ...], tag: str) -> None:
    assert tag in page(*spans)
    assert tag in trace_page.render_index([Trace(TRACE, (ROOT, *spans), 0)], BEGIN)


def test_a_banner_is_there_while_the_newest_attempt_has_failed() -> None:
    banner = '<div class="verdict">LockTimeout: gpu-0 is busy</div>'
    assert banner in page(attempt(1, 20, BUSY))
    assert 'class="verdict"' not in page(attempt(1, 20, BUSY), attempt(2, 50))


def test_the_message_of_the_banner_is_not_repeated_in_the_rows() -> None:
    html = page(attempt(1, 20, BUSY))
    assert html.count("gpu-0 is busy") == 1
    assert '<span class="why">LockTimeout, as above</span>' in html


def test_a_failure_that_is_over_is_explained_in_its_row() -> None:
    html = page(attempt(1, 20, BUSY), attempt(2, 50))
    assert '<span class="why">LockTimeout: gpu-0 is busy</span>' in html


def test_waits_and_failures_have_colours_of_their_own() -> None:
    first = attempt(1, 20)
    html = page(
        first,
        below(first, "wait lock", 20, 24),
        below(first, "wait device", 24, 26, failure=BUSY),
        below(first, "write spec", 26, 30),
    )
    found = rows(html)
    assert (found["wait lock"], found["wait device"], found["write spec"]) == (
        "wait",
        "bad",
        "good",
    )


def test_a_bar_has_its_place_on_the_scale_of_its_section() -> None:
    first = attempt(1, 20)
    html = page(first, below(first, "fetch claim", 22.5, 30))
    assert '<i style="left:min(25.00%,100% - 3px);width:75.00%"></i>' in html
    assert "<span>0</span><span>5.00 ms</span><span>10.0 ms</span>" in html


def test_a_step_below_another_is_indented() -> None:
    first = attempt(1, 20)
    step = below(first, "verify devices", 20, 30)
    html = page(first, step, below(step, "call nvml", 22, 24))
    assert 'style="padding-left:0.0rem">verify devices<' in html
    assert 'style="padding-left:1.1rem">call nvml<' in html


def test_a_row_unfolds_to_the_time_the_id_and_the_attributes_of_its_span() -> None:
    first = attempt(1, 20, BUSY)._replace(attributes={"nvdra.devices": ("gpu-0", "gpu-1")})
    html = page(first)
    assert (
        "<dl><dt>started<dd>2026-11-05T12:00:00.020000+00:00"
        f"<dt>span<dd>{first.id}"
        "<dt>nvdra.devices<dd>gpu-0,gpu-1"
        "<dt>error.type<dd>LockTimeout</dl>"
    ) in html


def test_a_wait_tells_for_which_claim_before_its_other_notes() -> None:
    first = attempt(1, 20)
    event = SpanEvent("asked again", BEGIN_NS + 21 * MS, {})
    wait = below(first, "wait lock", 20, 24, attributes={"nvdra.holder": "uid-2"}, events=(event,))
    assert (
        '<span class="note">for claim uid-2</span><span class="note">asked again after 1.00 ms'
        in page(first, wait)
    )


def test_three_attempts_that_failed_alike_are_one_row_with_a_bar_each() -> None:
    html = page(*(attempt(number, 20 * number, BUSY) for number in (1, 2, 3)))
    assert rows(html)["prepare, attempts 1 to 3"] == "bad"
    assert '<span class="number">3 times</span>' in html
    row = html.split("prepare, attempts 1 to 3")[1]
    assert row.count("<i style=") == 3
    assert row.count("<dt>nvdra.attempt") == 3


def test_what_is_no_longer_in_memory_is_counted() -> None:
    assert "<p>7 spans of older attempts are no longer in memory.</p>" in page(omitted=7)
    assert "no longer in memory" not in page()


def test_the_index_leads_to_each_trace_in_the_order_given() -> None:
    other = TraceID("b" * 32)
    traces = [
        Trace(other, (Span("claim", other, SpanID("c" * 16), None, SpanID("c" * 16), BEGIN_NS,
                           BEGIN_NS, {}),), 0),
        Trace(TRACE, (ROOT,), 0),
    ]  # fmt: skip
    html = trace_page.render_index(traces, BEGIN + timedelta(minutes=5))
    assert re.findall(r'href="([^"]*)">([^<]*)<', html) == [
        (f"/debug/traces/{other}", "claim"),
        (f"/debug/traces/{TRACE}", "ml/train"),
    ]
    assert "the last 2, newest first" in html
    assert html.count("5 min 0 s ago") == 2


def test_a_trace_of_a_clock_that_is_ahead_has_no_negative_age() -> None:
    html = trace_page.render_index([Trace(TRACE, (ROOT,), 0)], BEGIN - timedelta(seconds=5))
    assert "<td>0 ago<td>" in html
