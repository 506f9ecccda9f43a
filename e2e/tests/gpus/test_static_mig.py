# SPDX-License-Identifier: Apache-2.0
"""MIG devices that an administrator has made, in pods."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import Cluster, Device
from nvdra_testing.cluster.kubectl import Kubectl

QUICKSTARTS = Path(__file__).parents[2] / "quickstarts"
NODE = "node-1"
ONE_SLICE = f"{workloads.attribute('profile')} == '1g.10gb'"
SLICES = [("1g.10gb", start) for start in range(4)]


@pytest.fixture(scope="module")
def divided(cluster: Cluster) -> Iterator[list[Device]]:
    """The MIG devices of a node of which two GPUs have some: four and one large, and three."""
    cluster.wait_idle()
    with ExitStack() as stack:
        first = stack.enter_context(cluster.mig_devices(NODE, 6, *SLICES, ("3g.40gb", 4)))
        second = stack.enter_context(cluster.mig_devices(NODE, 7, *SLICES[:3]))
        yield [*first, *second]
        cluster.wait_idle()


def test_four_slices_of_one_gpu_are_given_to_one_pod(
    cluster: Cluster, pods: Kubectl, divided: list[Device]
) -> None:
    pods.apply(QUICKSTARTS / "10-four-slices-of-one-board.yaml")
    pods.wait_running("four-slices")
    (claim,) = workloads.claims_of(pods, "four-slices")
    devices = cluster.allocated_devices(claim)
    parents = {device.attributes["parentUUID"] for device in devices}
    assert len(parents) == 1
    assert {device.name for device in devices} < {device.name for device in divided}
    seen = workloads.visible_mig_devices(pods, "four-slices")
    assert seen == {device.uuid for device in devices}
    assert len(seen) == 4
    assert workloads.visible_gpus(pods, "four-slices").minors == {6}


def test_two_pods_have_two_slices_of_one_gpu_and_see_their_own_only(
    cluster: Cluster, pods: Kubectl, divided: list[Device]
) -> None:
    parent = divided[0].attributes["parentUUID"]
    of_parent = f"{workloads.attribute('parentUUID')} == '{parent}'"
    pods.apply(workloads.template("one", workloads.mig_devices("mig", ONE_SLICE, of_parent)))
    for name in ("a", "b"):
        pods.apply(workloads.pod(name, templates=["one"]))
    pods.wait_running("a", "b")
    seen = [workloads.visible_mig_devices(pods, name) for name in ("a", "b")]
    assert [len(each) for each in seen] == [1, 1]
    assert seen[0] != seen[1]
    for name, uuids in zip(("a", "b"), seen, strict=True):
        (claim,) = workloads.claims_of(pods, name)
        assert {device.uuid for device in cluster.allocated_devices(claim)} == uuids


def test_a_mig_device_is_chosen_by_its_memory_and_a_whole_gpu_is_not_of_its_class(
    cluster: Cluster, pods: Kubectl, divided: list[Device]
) -> None:
    at_least = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('20Gi')) >= 0"
    pods.apply(workloads.template("large", workloads.mig_devices("mig", at_least)))
    pods.apply(workloads.pod("p", templates=["large"]))
    pods.wait_running("p")
    (claim,) = workloads.claims_of(pods, "p")
    (device,) = cluster.allocated_devices(claim)
    assert (device.attributes["type"], device.attributes["profile"]) == ("mig", "3g.40gb")
    assert device.name in {each.name for each in divided}


def test_a_gpu_in_mig_mode_is_not_given_whole(
    cluster: Cluster, pods: Kubectl, divided: list[Device]
) -> None:
    names = {device.name for device in cluster.devices() if device.node == NODE}
    assert not names & {"gpu-6", "gpu-7"}
    parents = {device.attributes["parentUUID"] for device in divided}
    is_parent = " || ".join(f"{workloads.attribute('uuid')} == '{uuid}'" for uuid in parents)
    pods.apply(workloads.template("whole", workloads.gpus("gpu", is_parent)))
    pods.apply(workloads.pod("p", templates=["whole"]))
    workloads.wait_unschedulable(pods, "p")


@pytest.mark.protocol("P29")
def test_a_mig_device_without_a_claim_is_asked_for_by_its_resource_name(
    cluster: Cluster, pods: Kubectl, settings: list[str], divided: list[Device]
) -> None:
    quickstart = QUICKSTARTS / "13-a-mig-device-by-its-resource.yaml"
    if cluster.release < api_versions.EXTENDED_RESOURCES_SINCE:
        pods.apply(quickstart)
        told = workloads.wait_unschedulable(pods, "classic-slice")
        assert "Insufficient nvidia.com/mig-1g.10gb" in told
        return
    profiles = json.dumps(["1g.10gb"])
    named = f"--set-json=nvdra-gpu-plugin.deviceClasses.migExtendedResources={profiles}"
    try:
        cluster.install(*settings, named)
        pods.apply(quickstart)
        pods.wait_running("classic-slice")
        (claim,) = workloads.living(pods.get("resourceclaims"))
        (device,) = cluster.allocated_devices(claim)
        assert workloads.visible_mig_devices(pods, "classic-slice") == {device.uuid}
        assert device.name in {each.name for each in divided}
    finally:
        cluster.install(*settings)
