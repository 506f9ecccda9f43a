# SPDX-License-Identifier: Apache-2.0
"""Claims are created and deleted; their GPUs become free, and nothing of them is left."""

from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import DRIVER, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

CDI = "/var/run/cdi"
CYCLES = 10
SHARERS = 12


def test_a_claim_is_allocated_while_its_pod_runs_and_gone_after_it(
    idle: Cluster, pods: Kubectl
) -> None:
    pods.apply(workloads.template("one", workloads.gpus()))
    pods.apply(workloads.pod("p", templates=["one"]))
    pods.wait_running("p")
    (claim,) = workloads.claims_of(pods, "p")
    (device,) = idle.allocated_devices(claim)
    assert [user["name"] for user in claim["status"]["reservedFor"]] == ["p"]
    assert idle.prepared_gpu_count(device.node) == 1
    pods.delete("pod", "p")
    wait_gone(pods)
    assert idle.prepared_gpu_count(device.node) == 0


def test_a_gpu_that_was_given_back_is_given_to_the_next_pod(
    cluster: Cluster, pods: Kubectl
) -> None:
    device = cluster.device("node-1", "gpu-2")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    for name in ("first", "second"):
        pods.apply(workloads.pod(name, templates=["that"]))
        pods.wait_running(name)
        assert workloads.visible_gpus(pods, name).uuids == {device.uuid}
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


def test_a_dozen_pods_of_one_claim_see_its_gpu_and_leave_nothing_twice(
    idle: Cluster, pods: Kubectl
) -> None:
    before = traces_of_claims(idle)
    names = [f"p{number}" for number in range(SHARERS)]
    for _ in range(2):
        pods.apply(workloads.claim("shared", workloads.gpus()))
        for name in names:
            pods.apply(workloads.pod(name, claims=["shared"]))
        pods.wait_running(*names)
        (device,) = idle.allocated_devices(pods.get("resourceclaim", "shared"))
        for name in (names[0], names[-1]):
            assert workloads.visible_gpus(pods, name).uuids == {device.uuid}
        pods.delete("pod", *names)
        pods.delete("resourceclaim", "shared")
        wait_gone(pods)
    assert traces_of_claims(idle) == before


def traces_of_claims(cluster: Cluster) -> dict[str, object]:
    """Everything that a claim could leave behind, on every node."""
    ours = (
        f"--field-selector=spec.driver={DRIVER}"  # a kubelet deletes those of drivers that are gone
    )
    slices = cluster.kubectl.get("resourceslices", "", ours)
    return {
        "devices": [(device.node, device.name) for device in cluster.devices()],
        "writes of slices": {
            each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in slices
        },
        "CDI specs": {node: cluster.exec_on_node(node, "ls", CDI) for node in cluster.nodes()},
        "held": {node: cluster.prepared_gpu_count(node) for node in cluster.nodes()},
    }


def wait_gone(pods: Kubectl) -> None:
    pods.wait(
        lambda: pods.run("get", "resourceclaims", "--no-headers") or None,
        "the claims to be gone with their pods",
    )
