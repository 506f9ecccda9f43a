# SPDX-License-Identifier: Apache-2.0
"""A pod whose GPU cannot be prepared says why, and starts once the cause is gone."""

import pytest
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODE, GPU = "node-2", 5


@pytest.mark.protocol("P11")
def test_a_pod_whose_gpu_is_lost_says_so_and_starts_when_it_is_back(
    cluster: Cluster, pods: Kubectl
) -> None:
    uuid = cluster.device(NODE, f"gpu-{GPU}").uuid
    pods.apply(workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(uuid))))
    pods.apply(workloads.gated_pod(workloads.pod("p", templates=["that"])))
    workloads.wait_allocated(pods, "p")  # a GPU that is lost earlier is not published
    with cluster.lose_gpu(NODE, GPU):
        workloads.open_gate(pods, "p")
        pods.wait(lambda: None if reasons(pods) else str(pods.events("p")), "a failed prepare")
        (claim,) = workloads.claims_of(pods, "p")
    told = reasons(pods)[0]
    assert f"DeviceUnhealthy: gpu-{GPU}" in told
    assert f"(trace {claim['metadata']['uid'].replace('-', '')})" in told
    pods.wait(lambda: None if described(pods, "DeviceUnhealthy") else "none", "the driver's Event")
    line = described(pods, "DeviceUnhealthy")[0]
    assert f"gpu-{GPU} ({uuid}) does not work" in line, "what, on which object"
    assert "look for Xid messages in the node's kernel log, reset the GPU" in line, "what to do"
    # The kubelet retries after a minute or more, or at once when the pod changes.
    pods.run("annotate", "pod", "p", "tests/again=now")
    pods.wait_running("p")
    assert workloads.visible_gpus(pods, "p").uuids == {uuid}


def reasons(pods: Kubectl) -> list[str]:
    """The kubelet's messages about failed prepares of the pod."""
    events = pods.events("p")
    return [message for reason, message in events if reason == "FailedPrepareDynamicResources"]


def described(pods: Kubectl, reason: str) -> list[str]:
    """The events with this reason in `kubectl describe pod`: type, reason, age, …"""
    shown = pods.run("describe", "pod", "p").partition("\nEvents:")[2]
    return [line for line in shown.splitlines() if line.split()[:2] == ["Warning", reason]]
