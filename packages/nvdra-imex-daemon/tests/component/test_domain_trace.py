# SPDX-License-Identifier: Apache-2.0
"""Spans of the daemons in the trace of their domain, as a collector gets them."""

import os
import signal

from nvdra_api.ids import DomainUID, NodeName
from nvdra_runtime.telemetry import trace_ids
from nvdra_testing.node.imex_daemons import Rack
from nvdra_testing.telemetry import otlp_receiver

NAMES = {"start daemon", "join clique", "start imex", "imex ready"}


def test_both_daemons_write_into_the_domains_trace(rack: Rack) -> None:
    rack.install_driver("node-a", "node-b")
    uid = DomainUID(rack.uid)
    with otlp_receiver.receiver() as collector:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRICS_EXPORTER": "none",
        }
        pods = [rack.start_pod(node, environ=environ) for node in ("node-a", "node-b")]
        rack.wait_until(lambda: rack.are_ready("node-a", "node-b"), "both to be Ready")
        spans = collector.wait(lambda spans: len(spans) >= 2 * len(NAMES))
        for pod in pods:
            own = [span for span in spans if span.resource["k8s.node.name"] == pod.node]
            assert {span.name for span in own} == NAMES
            assert {span.trace_id for span in own} == {trace_ids.trace_id(uid)}
            assert {span.parent_id for span in own} == {
                trace_ids.member_span_id(uid, NodeName(pod.node))
            }
            assert {span.resource["service.name"] for span in own} == {"nvdra-imex-daemon"}
            assert {span.resource["k8s.pod.uid"] for span in own} == {pod.uid}
            assert not any(span.is_error for span in own)


def test_an_imex_that_never_gets_ready_is_a_failed_span(rack: Rack) -> None:
    rack.install_driver("node-a")
    rack.set_imex_faults("node-a", never_ready=True)
    pod = rack.start_pod("node-a")
    rack.wait_until(lambda: "INIT_GPU" in str(rack.entries().get("node-a")), "the word")
    (imex,) = pod.imex_pids()
    os.kill(imex, signal.SIGKILL)
    rack.wait_until(lambda: pod.status()["imex"]["starts"] == 2, "another IMEX")
    page = pod.get(f"/debug/traces/{rack.uid}?format=text", debug=True)[1]
    assert "imex ready" in page
    assert "! DaemonNotReady: nvidia-imex ended by itself with signal SIGKILL" in page
