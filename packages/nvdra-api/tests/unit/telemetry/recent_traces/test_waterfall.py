# SPDX-License-Identifier: Apache-2.0
"""How the text of a trace is drawn: bars, names, notes, and the lines of the index."""

from datetime import UTC, datetime, timedelta

import pytest
from nvdra_api.ids import TraceID
from nvdra_runtime.telemetry import keys, trace_ids
from nvdra_runtime.telemetry.keys import Outcome
from nvdra_runtime.telemetry.recent_traces import waterfall
from nvdra_runtime.telemetry.recent_traces.recorder import Trace
from nvdra_runtime.telemetry.recent_traces.trace_view import Row, Section
from nvdra_runtime.telemetry.spans import Failure, Span, SpanEvent

TRACE = TraceID("3f0c1a527c1b4d0e8a550123456789ab")
BEGIN = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
BEGIN_NS = int(BEGIN.timestamp()) * 10**9
MS = 1_000_000
BUSY = Failure(Outcome.RETRYABLE, "LockTimeout", "gpu-0 is busy")


def span(name: str, milliseconds: float = 10, **more: object) -> Span:
    """A span without a parent, from the beginning on."""
    id_ = trace_ids.span_id(name)
    end_ns = BEGIN_NS + int(milliseconds * MS)
    made = Span(name, TRACE, id_, None, id_, BEGIN_NS, end_ns, {})
    return made._replace(**more)  # type: ignore[arg-type]  # fields by name


def section(*rows: Row) -> list[str]:
    """The rows of a section of 10 ms, without its scale."""
    drawn = waterfall.render_section(Section(title="prepare", seconds=0.01, rows=rows))
    return drawn.splitlines()[1:]


def bar(offset: float, length: float) -> str:
    (line,) = section(Row(span("call"), 0, offset, length))
    return line.split("|")[1]


def test_a_section_begins_with_its_title_and_its_scale() -> None:
    drawn = waterfall.render_section(Section(title="prepare", seconds=0.01, rows=()))
    assert drawn == f"{'prepare':<24} |0{'10.0 ms':>39}|\n"


@pytest.mark.parametrize(
    ("offset", "length", "before", "cells"),
    [
        (0.0, 1.0, 0, 40),
        (0.5, 0.25, 20, 10),
        (0.5, 0.0, 20, 1),
        (1.0, 0.0, 39, 1),
        (0.9, 0.5, 36, 4),
    ],
    ids=["whole", "part", "short", "short at the end", "beyond the end"],
)
def test_a_bar_is_at_least_one_cell_and_stays_inside(
    offset: float, length: float, before: int, cells: int
) -> None:
    assert bar(offset, length) == (" " * before + "█" * cells).ljust(40)


def test_a_child_is_indented_with_its_notes() -> None:
    event = SpanEvent("asked again", BEGIN_NS + 2 * MS, {"nvdra.device": "gpu-0"})
    child = span("call nvml", 3, failure=BUSY, events=(event,))
    first, *notes = section(Row(child, 2, 0.0, 0.3))
    assert first == f"{'    call nvml':<24} |{'█' * 12:<40}|    3.00 ms"
    assert notes == [
        "      ! LockTimeout: gpu-0 is busy",
        "      * asked again after 2.00 ms device=gpu-0",
    ]


@pytest.mark.parametrize(
    ("name", "shown"), [("x" * 24, "x" * 24), ("x" * 25, "x" * 23 + "…")], ids=["fits", "cut"]
)
def test_a_name_that_is_too_long_is_cut_with_a_sign(name: str, shown: str) -> None:
    (line,) = section(Row(span(name), 0, 0.0, 1.0))
    assert line.split(" |")[0] == shown


def test_the_same_failure_is_explained_once_in_a_section() -> None:
    other = Failure(Outcome.RETRYABLE, "LockTimeout", "gpu-1 is busy")
    lines = section(
        *(
            Row(span(name, failure=failure), 0, 0.0, 1.0)
            for name, failure in (("a", BUSY), ("b", BUSY), ("c", other))
        )
    )
    assert lines[1::2] == [
        "  ! LockTimeout: gpu-0 is busy",
        "  ! LockTimeout, as above",
        "  ! LockTimeout: gpu-1 is busy",
    ]


def test_attempts_that_failed_alike_share_a_row_without_the_attributes_of_one() -> None:
    attempts = (
        Row(span("prepare", 1, failure=BUSY, attributes={"nvdra.attempt": number}), 0, begin, 0.1)
        for number, begin in ((1, 0.0), (2, 0.25), (3, 0.5))
    )
    first, note = section(*attempts)
    bars = ("█" * 4 + " " * 6 + "█" * 4 + " " * 6 + "█" * 4).ljust(40)
    assert first == f"{'prepare':<24} |{bars}|    3 times"
    assert note == "  ! LockTimeout: gpu-0 is busy"


def test_the_head_tells_an_operation_that_has_not_ended() -> None:
    drawn = waterfall.render(Trace(TRACE, (span("claim"),), omitted=0))
    assert drawn.splitlines()[:3] == [
        "claim : in progress",
        f"trace {TRACE}, from 2026-11-05 12:00:00.000 UTC, 10.0 ms",
        "",
    ]
    assert "no longer in memory" not in drawn


def test_an_index_line_tells_the_reason_before_the_outcome() -> None:
    claim = span("claim", 100)
    attempt = span("prepare", 50)._replace(
        parent=claim.id, attributes={"nvdra.outcome": "retryable"}, failure=BUSY
    )
    now = BEGIN + timedelta(seconds=90)
    line = waterfall.render_index([Trace(TRACE, (claim, attempt), 0)], now)
    assert line == f"{TRACE}    1 min 30 s ago       100 ms  LockTimeout      claim\n"


def test_a_trace_of_a_clock_that_is_ahead_has_no_negative_age() -> None:
    trace = Trace(TRACE, (span("claim"),), omitted=0)
    line = waterfall.render_index([trace, trace], BEGIN - timedelta(seconds=5))
    assert line == f"{TRACE}             0 ago      10.0 ms  in progress      claim\n" * 2


def test_no_text_of_a_tenant_controls_the_terminal_or_adds_a_line() -> None:
    def shown(text: str) -> str:
        failed = span(
            "prepare",
            attributes={
                keys.K8S_NAMESPACE_NAME: f"team{text}",
                keys.K8S_RESOURCECLAIM_NAME: f"claim{text}",
                f"key{text}": f"value{text}",
            },
            failure=Failure(Outcome.PERMANENT, "InvalidConfig", f"is wrong{text}"),
            events=(SpanEvent(f"waited{text}", BEGIN_NS, {f"for{text}": f"it{text}"}),),
        )
        trace = Trace(TRACE, (failed,), 0)
        return waterfall.render(trace) + waterfall.render_index([trace], BEGIN)

    hostile = shown("\x1b[31m\x9b2J\u202e\ud800\tx\nready")
    assert len(hostile.splitlines()) == len(shown("").splitlines())
    assert all(line.isprintable() for line in hostile.split("\n"))
    assert "\\u001b[31m" in hostile
