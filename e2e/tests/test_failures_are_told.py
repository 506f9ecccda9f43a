"""A pod whose GPU cannot be prepared says why, and starts once the reason is gone."""

import pytest
import workloads
from cluster import Cluster
from kubectl import Kubectl

NODE, GPU = "node-2", 5


@pytest.mark.protocol("P11")
def test_a_pod_whose_gpu_is_lost_says_so_and_starts_when_it_is_back(
    cluster: Cluster, pods: Kubectl
) -> None:
    uuid = cluster.device(NODE, f"gpu-{GPU}").uuid
    pods.apply(workloads.template("that", workloads.gpus("gpu", workloads.is_gpu(uuid))))
    pods.apply(workloads.held_back(workloads.pod("p", templates=["that"])))
    workloads.wait_allocated(pods, "p")  # a GPU that is lost before is offered to nobody
    with cluster.lost(NODE, GPU):
        workloads.let_go(pods, "p")
        pods.wait(lambda: None if reasons(pods) else str(pods.events("p")), "a failed prepare")
        (claim,) = workloads.claims_of(pods, "p")
    told = reasons(pods)[0]
    assert f"DeviceUnhealthy: gpu-{GPU}" in told
    assert f"(trace {claim['metadata']['uid'].replace('-', '')})" in told
    pods.wait(lambda: None if described(pods, "DeviceUnhealthy") else "none", "the driver's Event")
    line = described(pods, "DeviceUnhealthy")[0]
    assert f"gpu-{GPU} ({uuid}) does not work" in line, "what, on which object"
    assert "look for Xid messages in the node's kernel log; reset the GPU" in line, "what to do"
    # By itself the kubelet tries again after a minute or more; at once when the pod changes.
    pods.run("annotate", "pod", "p", "tests/again=now")
    pods.wait_running("p")
    assert workloads.view(pods, "p").uuids == {uuid}


def reasons(pods: Kubectl) -> list[str]:
    """What the kubelet says on the pod about prepares that failed."""
    events = pods.events("p")
    return [message for reason, message in events if reason == "FailedPrepareDynamicResources"]


def described(pods: Kubectl, reason: str) -> list[str]:
    """The Events with this reason, as `kubectl describe pod` shows them: type, reason, age, …"""
    shown = pods.run("describe", "pod", "p").partition("\nEvents:")[2]
    return [line for line in shown.splitlines() if line.split()[:2] == ["Warning", reason]]
