# SPDX-License-Identifier: Apache-2.0
"""Pods that claim whole GPUs see those GPUs and no others."""

from pathlib import Path

import pytest
from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.workloads import VisibleGpus

QUICKSTARTS = Path(__file__).parents[2] / "quickstarts"


def given(cluster: Cluster, pods: Kubectl, pod: str) -> VisibleGpus:
    """What a pod should see by the allocations of its claims."""
    claims = workloads.claims_of(pods, pod)
    devices = [device for claim in claims for device in cluster.allocated_devices(claim)]
    return VisibleGpus(
        uuids=frozenset(device.uuid for device in devices),
        minors=frozenset(int(device.name.removeprefix("gpu-")) for device in devices),
    )


def test_a_pod_sees_exactly_the_gpu_that_its_claim_was_given(
    cluster: Cluster, pods: Kubectl
) -> None:
    pods.apply(workloads.template("one", workloads.gpus()))
    pods.apply(workloads.pod("p", templates=["one"]))
    pods.wait_running("p")
    seen = workloads.visible_gpus(pods, "p")
    assert len(seen.uuids) == 1
    assert seen == given(cluster, pods, "p")


def test_two_pods_with_a_claim_each_see_different_gpus(pods: Kubectl) -> None:
    pods.apply(QUICKSTARTS / "1-two-pods-a-gpu-each.yaml")
    pods.wait_running("own-gpu-a", "own-gpu-b")
    first, second = (
        workloads.visible_gpus(pods, "own-gpu-a"),
        workloads.visible_gpus(pods, "own-gpu-b"),
    )
    assert len(first.uuids) == len(second.uuids) == 1
    assert first.uuids != second.uuids


def test_two_containers_of_a_pod_share_the_gpu_of_its_claim(pods: Kubectl) -> None:
    pods.apply(QUICKSTARTS / "2-one-gpu-two-containers.yaml")
    pods.wait_running("shared-in-pod")
    first = workloads.visible_gpus(pods, "shared-in-pod", "first")
    assert len(first.uuids) == 1
    assert workloads.visible_gpus(pods, "shared-in-pod", "second") == first


@pytest.mark.protocol("P19")
def test_two_pods_that_name_one_claim_see_the_same_gpu(cluster: Cluster, pods: Kubectl) -> None:
    pods.apply(QUICKSTARTS / "3-two-pods-one-claim.yaml")
    pods.wait_running("shared-claim-a", "shared-claim-b")
    first = workloads.visible_gpus(pods, "shared-claim-a")
    assert workloads.visible_gpus(pods, "shared-claim-b") == first
    claim = pods.get("resourceclaim", "shared-gpu")
    assert first.uuids == {device.uuid for device in cluster.allocated_devices(claim)}
    assert {user["name"] for user in claim["status"]["reservedFor"]} == {
        "shared-claim-a",
        "shared-claim-b",
    }


def test_a_claim_for_two_gpus_below_one_pcie_root_gets_such_a_pair(
    cluster: Cluster, pods: Kubectl
) -> None:
    pods.apply(QUICKSTARTS / "5-two-gpus-one-pcie-root.yaml")
    pods.wait_running("gpu-pair")
    (claim,) = workloads.claims_of(pods, "gpu-pair")
    roots = [
        device.attributes["resource.kubernetes.io/pcieRoot"]
        for device in cluster.allocated_devices(claim)
    ]
    assert len(roots) == 2
    assert len(set(roots)) == 1
    seen = workloads.visible_gpus(pods, "gpu-pair")
    assert len(seen.uuids) == 2
    assert seen == given(cluster, pods, "gpu-pair")


def test_a_pod_with_two_claims_sees_both_gpus(cluster: Cluster, pods: Kubectl) -> None:
    pods.apply(workloads.template("left", workloads.gpus()))
    pods.apply(workloads.template("right", workloads.gpus()))
    pods.apply(workloads.pod("p", templates=["left", "right"]))
    pods.wait_running("p")
    seen = workloads.visible_gpus(pods, "p")
    assert len(seen.uuids) == 2
    assert seen == given(cluster, pods, "p")


@pytest.mark.protocol("P21")
def test_a_container_sees_only_the_request_of_the_claim_that_it_names(pods: Kubectl) -> None:
    pods.apply(workloads.template("two", workloads.gpus("a"), workloads.gpus("b", count=2)))
    containers = {"first": ["two/a"], "second": ["two/b"], "third": []}
    pods.apply(workloads.pod("p", templates=["two"], containers=containers))
    pods.wait_running("p")
    first, second = (workloads.visible_gpus(pods, "p", name) for name in ("first", "second"))
    assert (len(first.uuids), len(second.uuids)) == (1, 2)
    assert not first.uuids & second.uuids
    assert not first.minors & second.minors


@pytest.mark.protocol("P22")
def test_the_first_alternative_that_can_be_had_is_given(cluster: Cluster, pods: Kubectl) -> None:
    better = f"{workloads.attribute('productName')} == 'NVIDIA H300'"
    also_good = f"{workloads.attribute('architecture')} == 'Hopper'"
    wish = workloads.template(
        "either", workloads.first_available("gpu", h300=better, any=also_good)
    )
    if cluster.release < api_versions.PRIORITIZED_LISTS_SINCE:
        assert (
            'unknown field "spec.spec.devices.requests[0].firstAvailable"'
            in pods.apply_rejected(wish)
        )
        return
    pods.apply(wish)
    pods.apply(workloads.pod("p", templates=["either"]))
    pods.wait_running("p")
    (claim,) = workloads.claims_of(pods, "p")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["request"] == "gpu/any"
    assert workloads.visible_gpus(pods, "p") == given(cluster, pods, "p")


@pytest.mark.protocol("P29")
def test_a_gpu_without_a_claim_is_asked_for_by_the_classic_resource_name(
    cluster: Cluster, pods: Kubectl
) -> None:
    pods.apply(QUICKSTARTS / "7-extended-resource.yaml")
    if cluster.release < api_versions.EXTENDED_RESOURCES_SINCE:
        pods.wait(lambda: None if pods.events("classic") else "nothing", "the scheduler's verdict")
        told = dict(pods.events("classic"))
        assert "Insufficient nvidia.com/gpu" in told["FailedScheduling"]
        return
    pods.wait_running("classic")
    seen = workloads.visible_gpus(pods, "classic")
    (claim,) = workloads.living(pods.get("resourceclaims"))
    assert claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"]
    (device,) = cluster.allocated_devices(claim)
    assert seen.uuids == {device.uuid}
    assert len(seen.minors) == 1
    for node in cluster.kubectl.get("nodes"):
        assert "nvidia.com/gpu" not in node["status"]["capacity"]


def test_a_pod_without_a_claim_sees_no_gpu(pods: Kubectl) -> None:
    pods.apply(workloads.pod("p"))
    pods.wait_running("p")
    assert "nvidia" not in pods.exec("p", "ls", "/dev")
    assert pods.run_unchecked("exec", "p", "--", "nvidia-smi").returncode != 0


@pytest.mark.parametrize("is_own", [True, False], ids=["its-own", "anothers"])
def test_a_device_node_made_by_hand_opens_only_for_the_gpu_the_container_was_given(
    pods: Kubectl, is_own: bool
) -> None:
    """Its own device node answers that there is no driver (ENXIO).

    Another one that it is forbidden (EPERM).
    """
    pods.apply(workloads.template("one", workloads.gpus()))
    pod = workloads.pod("p", templates=["one"])
    # containerd gives each container this capability, CRI-O only those that ask for it.
    pod["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["MKNOD"]}}
    pods.apply(pod)
    pods.wait_running("p")
    (own,) = workloads.visible_gpus(pods, "p").minors
    minor = own if is_own else (own + 1) % 8
    script = f"mknod /tmp/gpu c 195 {minor} && head -c 1 /tmp/gpu 2>&1 || true"
    answer = pods.exec("p", "sh", "-c", script).strip()
    assert answer.endswith("No such device or address" if is_own else "Operation not permitted")
