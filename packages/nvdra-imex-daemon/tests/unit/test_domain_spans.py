# SPDX-License-Identifier: Apache-2.0
"""The trace into which a daemon writes: its domain's, or its node's own in a large domain."""

from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_imex_daemon.domain_spans import DomainReference, DomainSpans
from nvdra_imex_daemon.settings import Settings
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.settings import loader
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

UID = DomainUID("11111111-2222-3333-4444-555555555555")
NODE = NodeName("node-a")


def traces(*, has_own_trace: bool) -> dict[str, list[tuple[str, str | None]]]:
    """The traces that a daemon writes, with the name and parent of each span."""
    clock, recorder = SystemClock(), TraceRecorder()
    spans = DomainSpans(
        Telemetry(clock, ProcessMetrics(driver="d"), recorder),
        clock,
        DomainReference("team-a", "ring", UID),
        CliqueID("c.1"),
        NODE,
        has_own_trace=has_own_trace,
    )
    with spans.operation("start imex"):
        pass
    spans.record("start daemon", clock.now())
    return {
        trace.id: sorted((span.name, span.parent) for span in trace.spans)
        for trace in recorder.traces()
    }


def test_a_daemon_writes_below_its_nodes_member_span_in_either_trace() -> None:
    member = trace_ids.member_span_id(UID, NODE)
    written = [("start daemon", member), ("start imex", member)]
    assert traces(has_own_trace=False) == {trace_ids.trace_id(UID): written}
    assert traces(has_own_trace=True) == {trace_ids.member_trace_id(UID, NODE): written}


def test_the_plugin_says_it_by_a_variable() -> None:
    assert not loader.load_or_raise(Settings, [], {}).member_trace
    assert loader.load_or_raise(Settings, [], {"MEMBER_TRACE": "true"}).member_trace
