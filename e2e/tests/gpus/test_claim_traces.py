# SPDX-License-Identifier: Apache-2.0
"""The processes that work on a claim write one trace, whose id is the claim's UID."""

from collections.abc import Sequence

import yaml
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster, Device
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.telemetry.otlp_receiver import Receiver, Span
from nvdra_testing.telemetry.span_tree import children, only_span

STEPS = ["fetch claim", "resolve config", "verify devices", "commit state"]
SLOW_MS = 1000
"""A tenth of it may be covered by no step, which is long even on a busy machine."""

LONG_MS = 1000
"""Two pods that are created together reach their prepare within this time. With three times as much
the GPU would count as hanging.
"""

EXPORT_S = 60


def test_a_claim_from_creation_to_the_end_of_its_pod_is_one_tree(
    cluster: Cluster, pods: Kubectl, collector: Receiver
) -> None:
    claim = hold(pods, cluster.device("node-1", "gpu-0"))
    pods.delete("pod", "p")
    spans = received(collector, claim, "claim", "schedule", "prepare", "unprepare")
    root = only_span(spans, "claim")
    known = {span.span_id for span in spans}
    assert {span.parent_id for span in spans} - known == {""}
    assert [span.name for span in spans if not span.parent_id] == ["claim"]
    assert [span.name for span in children(spans, root)] == ["schedule", "prepare", "unprepare"]
    assert [span.name for span in children(spans, only_span(spans, "prepare"))] == STEPS
    assert [span.name for span in children(spans, only_span(spans, "unprepare"))] == [
        "commit state"
    ]
    for span in spans:
        assert span.resource["service.name"] == "nvdra-gpu-plugin"
        assert span.resource["k8s.node.name"] == "node-1"
        assert not span.is_error


def test_a_slow_gpu_is_where_the_trace_says_that_the_time_went(
    cluster: Cluster, pods: Kubectl, collector: Receiver
) -> None:
    with cluster.slow_gpu("node-1", 6, SLOW_MS):
        claim = hold(pods, cluster.device("node-1", "gpu-6"))
    spans = received(collector, claim, "prepare", *STEPS)
    prepare = only_span(spans, "prepare")
    assert prepare.seconds >= SLOW_MS / 1000
    assert covered_s(children(spans, prepare)) >= 0.9 * prepare.seconds
    assert only_span(spans, "verify devices").seconds >= SLOW_MS / 1000


def test_a_claim_for_monitoring_waits_for_no_other_claim_of_its_gpu(
    cluster: Cluster, pods: Kubectl, collector: Receiver
) -> None:
    """Two claims are prepared at once; a wait for a lock would be a step of one of them."""
    device = cluster.device("node-2", "gpu-6")
    wanted = workloads.is_gpu_with_uuid(device.uuid)
    workloads.allow_admin_access(pods)
    pods.apply(workloads.claim("user", workloads.gpus("gpu", wanted)))
    pods.apply(workloads.claim("admin", workloads.gpus("gpu", wanted, admin=True)))
    with cluster.slow_gpu("node-2", 6, LONG_MS):
        both = [workloads.pod(name, claims=[name]) for name in ("user", "admin")]
        pods.apply(yaml.safe_dump_all(both))
        pods.wait_running("user", "admin")
    for name in ("user", "admin"):
        claim = pods.get("resourceclaim", name)
        spans = received(collector, claim, "prepare", *STEPS)
        assert only_span(spans, "verify devices").seconds >= LONG_MS / 1000
        assert "wait lock" not in {span.name for span in spans}


def test_a_claim_that_was_never_prepared_has_its_root_too(
    cluster: Cluster, pods: Kubectl, collector: Receiver
) -> None:
    device = cluster.device("node-2", "gpu-7")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    pods.apply(workloads.gated_pod(workloads.pod("p", templates=["that"])))
    workloads.wait_allocated(pods, "p")  # a GPU that is lost earlier is not published
    with cluster.lose_gpu("node-2", 7):
        workloads.open_gate(pods, "p")
        (claim,) = workloads.claims_of(pods, "p")
        spans = received(collector, claim, "claim", "prepare")
        pods.delete("pod", "p")
    root = only_span(spans, "claim")
    attempts = [span for span in spans if span.name == "prepare"]
    for span in (root, *attempts):
        assert span.is_error
        assert span.attributes["error.type"] == "DeviceUnhealthy"
    assert {span.parent_id for span in attempts} == {root.span_id}
    assert not root.parent_id


def test_a_trace_is_read_on_the_node_itself_through_a_port_forward(
    cluster: Cluster, pods: Kubectl
) -> None:
    claim = hold(pods, cluster.device("node-1", "gpu-1"))
    text = cluster.trace("node-1", claim["metadata"]["uid"])
    for step in ("schedule", "prepare", *STEPS):
        assert step in text


def hold(pods: Kubectl, device: Device) -> workloads.Manifest:
    """Run the pod `p` with that GPU, and return its claim."""
    wanted = workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid))
    pods.apply(workloads.template("that", wanted))
    pods.apply(workloads.pod("p", templates=["that"]))
    pods.wait_running("p")
    (claim,) = workloads.claims_of(pods, "p")
    return claim


def received(collector: Receiver, claim: workloads.Manifest, *names: str) -> list[Span]:
    """Wait until the claim's trace has spans of all these names, and return it."""
    return collector.wait(
        lambda spans: set(names) <= {span.name for span in spans},
        trace_id=claim["metadata"]["uid"].replace("-", ""),
        timeout_s=EXPORT_S,
    )


def covered_s(spans: Sequence[Span]) -> float:
    """The time in which at least one of the spans ran."""
    total, until = 0, 0
    for span in sorted(spans, key=lambda span: span.start_ns):
        total += max(0, span.end_ns - max(span.start_ns, until))
        until = max(until, span.end_ns)
    return total / 1e9
