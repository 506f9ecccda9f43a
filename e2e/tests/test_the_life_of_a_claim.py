"""Claims come and go; what they held is free again, and nothing of them is left."""

import workloads
from cluster import DRIVER, Cluster
from kubectl import Kubectl

CDI = "/var/run/cdi"
CYCLES = 10


def test_a_claim_is_allocated_while_its_pod_runs_and_gone_after_it(
    idle: Cluster, pods: Kubectl
) -> None:
    pods.apply(workloads.template("one", workloads.gpus()))
    pods.apply(workloads.pod("p", templates=["one"]))
    pods.wait_running("p")
    (claim,) = workloads.claims_of(pods, "p")
    (device,) = idle.allocated(claim)
    assert [user["name"] for user in claim["status"]["reservedFor"]] == ["p"]
    assert idle.held(device.node) == 1
    pods.delete("pod", "p")
    wait_gone(pods)
    assert idle.held(device.node) == 0


def test_a_gpu_that_was_given_back_is_given_to_the_next_pod(
    cluster: Cluster, pods: Kubectl
) -> None:
    device = cluster.device("node-1", "gpu-2")
    pods.apply(workloads.template("that", workloads.gpus("gpu", workloads.is_gpu(device.uuid))))
    for name in ("first", "second"):
        pods.apply(workloads.pod(name, templates=["that"]))
        pods.wait_running(name)
        assert workloads.view(pods, name).uuids == {device.uuid}
        pods.delete("pod", name)


def test_ten_pods_one_after_another_leave_nothing_behind(idle: Cluster, pods: Kubectl) -> None:
    before = traces_of_claims(idle)
    pods.apply(workloads.template("one", workloads.gpus()))
    for cycle in range(CYCLES):
        name = f"p{cycle}"
        pods.apply(workloads.pod(name, templates=["one"]))
        pods.wait_running(name)
        pods.delete("pod", name)
    wait_gone(pods)
    assert traces_of_claims(idle) == before


def traces_of_claims(cluster: Cluster) -> dict[str, object]:
    """Everything that a claim could leave behind, on every node."""
    ours = f"--field-selector=spec.driver={DRIVER}"  # a kubelet wipes those of drivers that left
    slices = cluster.kubectl.get("resourceslices", "", ours)
    return {
        "devices": [(device.node, device.name) for device in cluster.devices()],
        "writes of slices": {
            each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in slices
        },
        "CDI specs": {node: cluster.inside(node, "ls", CDI) for node in cluster.nodes()},
        "held": {node: cluster.held(node) for node in cluster.nodes()},
    }


def wait_gone(pods: Kubectl) -> None:
    pods.wait(
        lambda: pods.run("get", "resourceclaims", "--no-headers") or None,
        "the claims to be gone with their pods",
    )
