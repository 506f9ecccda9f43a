# SPDX-License-Identifier: Apache-2.0
"""A trace as text for terminals, as a page for browsers, as JSON for programs."""

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from nvdra_api.ids import SpanID, TraceID
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.keys import Outcome
from nvdra_runtime.telemetry.recent_traces import trace_page, trace_view, waterfall
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.spans import Failure, Span, SpanEvent
from nvdra_runtime.telemetry.trace_ids import Link

TRACE = TraceID("3f0c1a527c1b4d0e8a550123456789ab")
BEGIN = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
BEGIN_NS = int(BEGIN.timestamp()) * 10**9
MS = 1_000_000
CLAIM = {
    "k8s.namespace.name": "default",
    "k8s.resourceclaim.name": "train",
    "k8s.resourceclaim.uid": "3f0c1a52-7c1b-4d0e-8a55-0123456789ab",
}


def span(name: str, parent: str | None, begin: float, end: float, **more: object) -> Span:
    """A span from `begin` to `end` milliseconds after the claim was made; its ID is of its name."""
    plain = Span(
        name=name,
        trace=TRACE,
        id=trace_ids.span_id(str(more.pop("id", name))),
        parent=trace_ids.span_id(parent) if parent else None,
        operation=trace_ids.span_id("any"),
        start_ns=BEGIN_NS + int(begin * MS),
        end_ns=BEGIN_NS + int(end * MS),
        attributes={},
    )
    return plain._replace(**more)  # type: ignore[arg-type]  # fields by name


IN_USE = Failure(Outcome.RETRYABLE, "DeviceInUse", "gpu-0 is held by claim default/other")
STORY = Trace(
    TRACE,
    (
        span("claim", None, 0, 1100, attributes={**CLAIM, "k8s.node.name": "node-a"}),
        span("schedule", "claim", 0, 880),
        span(
            "prepare",
            "claim",
            1000,
            1004,
            id="first",
            attributes={**CLAIM, "nvdra.attempt": 1, "nvdra.outcome": "retryable"},
            failure=IN_USE,
        ),
        span("fetch claim", "first", 1000, 1003),
        span("resolve config", "first", 1003, 1003.4, failure=IN_USE),
        span(
            "prepare",
            "claim",
            1090,
            1100,
            id="second",
            attributes={**CLAIM, "nvdra.attempt": 2, "nvdra.outcome": "success"},
            links=(Link(TraceID("a" * 32), SpanID("b" * 16), "inbound"),),
        ),
        span("wait lock", "second", 1091, 1096, attributes={"nvdra.holder": "other"}),
        span(
            "verify devices",
            "second",
            1096,
            1099,
            events=(SpanEvent("asked again", BEGIN_NS + 1097 * MS, {"nvdra.device": "gpu-0"}),),
        ),
        span("call nvml", "verify devices", 1096.5, 1098.5),
    ),
    omitted=7,
)

WATERFALL = """\
claim default/train on node-a: success
trace 3f0c1a527c1b4d0e8a550123456789ab, from 2026-11-05 12:00:00.000 UTC, 1.10 s

life of the claim        |0                                 1.10 s|
claim                    |████████████████████████████████████████|     1.10 s
  schedule               |████████████████████████████████        |     880 ms
  prepare                |                                    █   |    4.00 ms  attempt=1
    ! DeviceInUse: gpu-0 is held by claim default/other
  prepare                |                                       █|    10.0 ms  attempt=2
    * linked (inbound) to trace aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, span bbbbbbbbbbbbbbbb

prepare, attempt 1       |0                                4.00 ms|
fetch claim              |██████████████████████████████          |    3.00 ms
resolve config           |                              ████      |    0.40 ms
  ! DeviceInUse, as above

prepare, attempt 2       |0                                10.0 ms|
wait lock                |    ████████████████████                |    5.00 ms  holder=other
verify devices           |                        ████████████    |    3.00 ms
  * asked again after 1.00 ms device=gpu-0
  call nvml              |                          ████████      |    2.00 ms

7 spans of older attempts are no longer in memory
"""


def test_the_waterfall_shows_the_claims_life_and_each_operation_on_its_own_scale() -> None:
    assert waterfall.render(STORY) == WATERFALL


def test_a_trace_whose_root_is_not_written_yet_is_shown_all_the_same() -> None:
    trace = Trace(TRACE, STORY.spans[2:5], 0)

    assert [node.span.name for node in trace_view.build_tree(trace)] == ["prepare"]
    assert "! DeviceInUse: gpu-0 is held" in waterfall.render(trace)


def test_the_summary_tells_the_newest_outcome() -> None:
    line = trace_view.summarize(STORY)
    assert (line.name, line.subject, line.node) == ("claim", "default/train", "node-a")
    assert (line.outcome, line.reason, line.seconds) == ("success", "", 1.1)

    before = trace_view.summarize(Trace(TRACE, STORY.spans[:5], 0))
    assert (before.outcome, before.reason) == ("retryable", "DeviceInUse")


def test_the_document_nests_spans_with_offsets_in_milliseconds() -> None:
    document = trace_view.trace_json(STORY)

    (root,) = document.pop("spans")  # type: ignore[misc]  # JSON
    assert document == {
        "trace_id": TRACE,
        "name": "claim",
        "kind": "claim",
        "claim": "default/train",
        "domain": "",
        "node": "node-a",
        "start": "2026-11-05T12:00:00+00:00",
        "duration_ms": 1100.0,
        "outcome": "success",
        "reason": "",
        "omitted_spans": 7,
    }
    schedule, first, second = root["children"]  # type: ignore[has-type]  # JSON
    assert (schedule["offset_ms"], schedule["duration_ms"]) == (0.0, 880.0)
    assert first["error"] == {
        "outcome": IN_USE.outcome.value,
        "reason": IN_USE.reason,
        "message": IN_USE.message,
    }
    assert second["links"] == [{"trace_id": "a" * 32, "span_id": "b" * 16, "why": "inbound"}]
    verify = second["children"][1]
    assert verify["events"] == [
        {"name": "asked again", "offset_ms": 1097.0, "attributes": {"nvdra.device": "gpu-0"}}
    ]
    assert [child["name"] for child in verify["children"]] == ["call nvml"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0"),
        (0.000_042, "42 µs"),
        (0.000_42, "0.42 ms"),
        (0.0031, "3.10 ms"),
        (0.0421, "42.1 ms"),
        (0.9, "900 ms"),
        (1.5, "1.50 s"),
        (59.0, "59.0 s"),
        (61, "1 min 1 s"),
        (3_700, "1 h 1 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_have_the_digits_that_matter(seconds: float, words: str) -> None:
    assert trace_view.format_duration(seconds) == words


def again(number: int) -> Span:
    attributes = {**CLAIM, "nvdra.attempt": number, "nvdra.outcome": "retryable"}
    begin = 900 + 10 * number
    return span(
        "prepare", "claim", begin, begin + 4, id=f"n{number}", attributes=attributes, failure=IN_USE
    )


STUCK = Trace(TRACE, (*STORY.spans[:2], *(again(number) for number in range(1, 9))), 0)
"""A claim that was refused eight times for the same reason."""


def test_attempts_that_failed_alike_are_one_row_and_their_reason_is_said_once() -> None:
    text = waterfall.render(STUCK)
    assert text.count(IN_USE.message) == 1
    assert "8 times" in text
    said = " ".join(Reader(trace_page.render(STUCK)).text)
    assert said.count(IN_USE.message) == 1
    assert "prepare, attempts 1 to 8" in said


def test_of_many_attempts_the_first_and_the_newest_are_unfolded() -> None:
    steps = (
        span("fetch claim", f"n{number}", 900 + 10 * number, 902 + 10 * number)
        for number in range(1, 9)
    )
    html = trace_page.render(Trace(TRACE, (*STUCK.spans, *steps), 0))
    unfolded = [part.split("</span>")[0].rsplit(">")[-1] for part in html.split('"part" open')[1:]]
    assert unfolded == [
        "life of the claim", "prepare, attempt 1", "prepare, attempt 7", "prepare, attempt 8",
    ]  # fmt: skip


class Reader(HTMLParser):
    """What a browser would make of a page: text, elements, what it would load."""

    VOID = frozenset({"meta", "br"})
    OPTIONAL_END = frozenset({"dt", "dd", "th", "td"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.elements: set[str] = set()
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.links += [value or "" for key, value in attrs if key in {"href", "src"}]
        if tag not in self.VOID | self.OPTIONAL_END:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_says_what_happened_and_loads_nothing() -> None:
    reader = Reader(trace_page.render(STORY))

    assert reader.open == []
    said = " ".join(reader.text)
    for words in ("prepare, attempt 2", "880 ms", "DeviceInUse: gpu-0 is held", "verify devices"):
        assert words in said
    assert reader.elements.isdisjoint({"script", "link", "img", "iframe"})
    assert all(link.startswith(("?", "/")) for link in reader.links)


def test_whatever_a_claim_is_called_it_is_text_on_the_page() -> None:
    evil = "<script>alert('\"1\"')</script>"
    attributes = {"k8s.resourceclaim.name": evil, evil: evil}
    failure = Failure(Outcome.INTERNAL, evil, evil)
    trace = Trace(
        TRACE,
        (
            span(evil, None, 0, 9, attributes=attributes, failure=failure, id="top"),
            span(evil, "top", 0, 9, id="op", events=(SpanEvent(evil, BEGIN_NS, {evil: evil}),)),
            span(evil, "op", 0, 9, links=(Link(TRACE, SpanID("b" * 16), evil),)),
        ),
        0,
    )

    for html in (trace_page.render(trace), trace_page.render_index([trace], BEGIN)):
        assert "<script" not in html
        assert evil in " ".join(Reader(html).text)


def test_the_index_lists_traces_with_their_age_and_outcome() -> None:
    now = BEGIN + timedelta(minutes=5)

    assert waterfall.render_index([STORY], now) == (
        f"{TRACE}     5 min 0 s ago       1.10 s  success          default/train\n"
    )
    reader = Reader(trace_page.render_index([STORY], now))
    assert f"/debug/traces/{TRACE}" in reader.links
    assert "5 min 0 s ago" in reader.text


def test_an_empty_index_says_when_there_will_be_a_trace() -> None:
    assert waterfall.render_index([], BEGIN) == "no trace yet\n"
    assert "There is no trace yet" in trace_page.render_index([], BEGIN)


DOMAIN = {
    "k8s.namespace.name": "team-a",
    "nvdra.domain.name": "ring",
    "nvdra.domain.uid": "3f0c1a52-7c1b-4d0e-8a55-0123456789ab",
}


@pytest.mark.parametrize("has_root", [True, False])
def test_a_domains_trace_is_told_as_a_domains_also_where_its_root_is_another_components(
    has_root: bool,
) -> None:
    root = [span("compute domain", None, 0, 900, attributes=DOMAIN)] if has_root else []
    told = [
        *root,
        span(
            "member", "compute domain", 10, 800, attributes={**DOMAIN, "nvdra.outcome": "success"}
        ),
        span("label node", "member", 10, 20, attributes=DOMAIN),
    ]
    trace = Trace(TRACE, tuple(told), omitted=0)

    first, *_ = waterfall.render(trace).splitlines()
    assert first.split(": ")[0].endswith("team-a/ring")
    assert "life of the compute domain" in waterfall.render(trace)
    assert "life of the compute domain" in trace_page.render(trace)
    assert "domain.uid" not in waterfall.render(trace)
    found = trace_view.trace_json(trace)
    assert (found["kind"], found["domain"], found["claim"]) == ("compute domain", "team-a/ring", "")


def test_the_members_of_a_domain_are_told_with_their_nodes() -> None:
    told = [
        span("compute domain", None, 0, 900, attributes=DOMAIN),
        *(
            part
            for node in ("node-1", "node-2")
            for part in (
                span(node, "compute domain", 10, 800, attributes={"k8s.node.name": node})._replace(
                    name="member"
                ),
                span("label node", node, 10, 20),
            )
        ),
    ]
    trace = Trace(TRACE, tuple(told), omitted=0)

    titles = [section.title for section in trace_view.build_sections(trace)]
    assert titles == ["life of the compute domain", "member node-1", "member node-2"]
    for drawn in (waterfall.render(trace), trace_page.render(trace)):
        assert drawn.count("member node-2") >= 2


def test_a_claim_that_joins_a_domain_has_a_claims_trace() -> None:
    other = {"nvdra.domain.uid": "11111111-2222-3333-4444-555555555555"}
    trace = Trace(
        TRACE,
        (
            span("claim", None, 0, 900, attributes=CLAIM),
            span("find domain", "claim", 10, 20, attributes=other),
        ),
        omitted=0,
    )
    assert trace_view.summarize(trace).kind == "claim"
    assert trace_view.summarize(trace).subject == "default/train"
    assert "domain.uid=11111111" in waterfall.render(trace)
