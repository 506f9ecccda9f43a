"""Spans of daemons in the trace of their domain, as a collector gets them, below the members'."""

import os
import signal

import otlp
from imexd import Rack
from nvdra_api.protocol import identity
from nvdra_api.types.ids import DomainUID, NodeName

NAMES = {"start daemon", "join clique", "start imex", "imex ready"}


def test_both_daemons_write_into_one_trace_with_nothing_passed_between_them(rack: Rack) -> None:
    rack.equip("node-a", "node-b")
    uid = DomainUID(rack.uid)
    with otlp.receiver() as collector:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRICS_EXPORTER": "none",
        }
        pods = [rack.start(node, environ=environ) for node in ("node-a", "node-b")]
        rack.until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready")
        spans = collector.wait(lambda spans: len(spans) >= 2 * len(NAMES))
        for pod in pods:
            own = [span for span in spans if span.resource["k8s.node.name"] == pod.node]
            assert {span.name for span in own} == NAMES
            assert {span.trace_id for span in own} == {identity.trace_id(uid)}
            assert {span.parent_id for span in own} == {identity.member(uid, NodeName(pod.node))}
            assert {span.resource["service.name"] for span in own} == {"nvdra-imex-daemon"}
            assert {span.resource["k8s.pod.uid"] for span in own} == {pod.uid}
            assert not any(span.is_error for span in own)


def test_an_imex_that_never_gets_ready_is_a_failed_span_with_its_reason(rack: Rack) -> None:
    rack.equip("node-a")
    rack.disturb("node-a", never_ready=True)
    pod = rack.start("node-a")
    rack.until(lambda: "NOT_READY" in str(rack.entries().get("node-a")), "the word")
    (imex,) = pod.imex_pids()
    os.kill(imex, signal.SIGKILL)
    rack.until(lambda: pod.status()["imex"]["starts"] == 2, "another IMEX")
    page = pod.get(f"/debug/traces/{rack.uid}?format=text", debug=True)[1]
    assert "imex ready" in page
    assert "! DaemonNotReady: nvidia-imex ended by itself with signal SIGKILL" in page
