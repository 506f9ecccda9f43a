# SPDX-License-Identifier: Apache-2.0
"""Pods with a share each of one GPU.

The driver is installed with the gate ConsumableShares and four shares per device for these tests. A
cluster that does not serve consumable capacity gives whole GPUs as without the gate, and is told
what is missing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODE = "node-1"
SETTINGS = (
    "--set=global.featureGates.ConsumableShares=true",
    "--set-string=nvdra-gpu-plugin.kubeletPlugin.consumableShares=4",
)
QUICKSTART = Path(__file__).parents[2] / "quickstarts/14-two-pods-share-a-gpu.yaml"


@pytest.fixture(scope="module")
def sharing(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while four claims share each GPU."""
    cluster.install(*settings, *SETTINGS)
    if cluster.release >= api_versions.SHARES_SINCE:
        cluster.kubectl.wait(
            lambda: None if is_shared(cluster) else "no share", "shares to be published"
        )
    yield cluster
    cluster.install(*settings)


def test_the_fifth_pod_waits_until_one_of_four_lets_go_of_its_share(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if sharing.release < api_versions.SHARES_SINCE:
        check_told_without_shares(sharing)
        return
    uuid = sharing.device(NODE, "gpu-1").uuid
    pods.apply(workloads.template("share", of_gpu(uuid)))
    names = [f"p{number}" for number in range(4)]
    for name in names:
        pods.apply(workloads.pod(name, templates=["share"]))
    pods.wait_running(*names)
    assert {workloads.visible_gpus(pods, name).uuids for name in names} == {frozenset({uuid})}
    shares = [result(pods, name)["shareID"] for name in names]
    assert len(set(shares)) == 4
    pods.apply(workloads.pod("fifth", templates=["share"]))
    workloads.wait_unschedulable(pods, "fifth")
    pods.delete("pod", "p0")
    pods.wait_running("fifth")
    assert workloads.visible_gpus(pods, "fifth").uuids == {uuid}


def test_a_pod_with_all_shares_has_the_gpu_alone(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if sharing.release < api_versions.SHARES_SINCE:
        check_told_without_shares(sharing)
        return
    uuid = sharing.device(NODE, "gpu-2").uuid
    pods.apply(workloads.template("all", of_gpu(uuid, shares="4")))
    pods.apply(workloads.template("one", of_gpu(uuid)))
    pods.apply(workloads.pod("alone", templates=["all"]))
    pods.wait_running("alone")
    pods.apply(workloads.pod("other", templates=["one"]))
    workloads.wait_unschedulable(pods, "other")
    pods.delete("pod", "alone")
    pods.wait_running("other")


def test_two_pods_keep_their_shares_over_a_restart_of_the_plugin(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if sharing.release < api_versions.SHARES_SINCE:
        check_told_without_shares(sharing)
        return
    pods.apply(QUICKSTART)
    pods.wait_running("sharing-a", "sharing-b")
    before = [result(pods, name) for name in ("sharing-a", "sharing-b")]
    assert [each["consumedCapacity"]["memory"] for each in before] == ["4Gi", "4Gi"]
    assert len({(each["pool"], each["device"]) for each in before}) == 1, "one GPU"
    node = pods.get("pod", "sharing-a")["spec"]["nodeName"]
    sharing.restart_plugin(node)
    for name, found in zip(("sharing-a", "sharing-b"), before, strict=True):
        assert result(pods, name) == found
        assert workloads.visible_gpus(pods, name).uuids == {
            sharing.device(found["pool"], found["device"]).uuid
        }
        wait_status(pods, name, found["shareID"])
    pods.delete("pod", "sharing-a", "sharing-b")


def of_gpu(uuid: str, **amounts: str) -> dict[str, Any]:
    """A request for a share of one GPU, or for these amounts of its capacities."""
    request = workloads.gpus("gpu", workloads.is_gpu_with_uuid(uuid))
    if amounts:
        request["exactly"]["capacity"] = {"requests": amounts}
    return request


def result(pods: Kubectl, pod: str) -> dict[str, Any]:
    """What the one request of the pod's claim was allocated."""
    (claim,) = workloads.claims_of(pods, pod)
    (only,) = claim["status"]["allocation"]["devices"]["results"]
    return dict(only)


def wait_status(pods: Kubectl, pod: str, share_id: str) -> None:
    """Wait until the status of the pod's claim has an entry for the share."""

    def missing() -> str | None:
        (claim,) = workloads.claims_of(pods, pod)
        found = [each.get("shareID") for each in claim["status"].get("devices") or ()]
        return None if found == [share_id] else f"{found}, not {share_id}"

    pods.wait(missing, "the status of the claim")


def is_shared(cluster: Cluster) -> bool:
    """Whether every published device of the node can be shared."""
    slices = cluster.kubectl.get("resourceslices")
    devices = [
        device
        for each in slices
        if each["spec"]["driver"] == "gpu.nvidia.com" and each["spec"].get("nodeName") == NODE
        for device in each["spec"].get("devices", ())
    ]
    return bool(devices) and all(each.get("allowMultipleAllocations") for each in devices)


def check_told_without_shares(cluster: Cluster) -> None:
    """Check that GPUs are for one claim each, and that the Node says why."""
    assert not is_shared(cluster)
    assert cluster.device(NODE, "gpu-1").uuid
    kubectl = cluster.kubectl.in_namespace("default")

    def missing() -> str | None:
        said = [text for _, text in kubectl.events(NODE)]
        return None if any("DRAConsumableCapacity" in text for text in said) else str(said)

    kubectl.wait(missing, "an Event of the Node about DRAConsumableCapacity")
