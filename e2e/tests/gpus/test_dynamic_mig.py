# SPDX-License-Identifier: Apache-2.0
"""MIG devices that are made for pods, and gone after them.

The driver is installed with the gates DynamicMIG and TimeSlicingSettings for these tests. A
cluster that does not serve partitionable devices gets whole GPUs as without the gate, and is told
what is missing.
"""

from collections.abc import Iterator

import pytest
from nvdra_lab import model
from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import Cluster, Device
from nvdra_testing.cluster.kubectl import Kubectl

NODE = "node-1"
GATES = [f"--set=global.featureGates.{gate}=true" for gate in ("DynamicMIG", "TimeSlicingSettings")]
IN_TURNS = {"kind": "MigDeviceConfig", "sharing": {"strategy": "TimeSlicing"}}
NVIDIA_SMI = f"{model.DRIVER_ROOT}/usr/bin/nvidia-smi"
PARENT = "gpu.nvidia.com/parentUUID"


@pytest.fixture(scope="module")
def dividing(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while the driver makes MIG devices for claims."""
    cluster.install(*settings, *GATES)
    if cluster.release >= api_versions.PARTITIONS_SINCE:
        cluster.kubectl.wait(
            lambda: None if partitions(cluster) else "no partition", "partitions to be published"
        )
    yield cluster
    cluster.install(*settings)


def test_a_slice_is_made_for_a_pod_excludes_the_whole_gpu_and_is_gone_after_it(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if dividing.release < api_versions.PARTITIONS_SINCE:
        check_told_without_partitions(dividing)
        return
    parent = dividing.device(NODE, "gpu-1").uuid
    pods.apply(workloads.template("slice", workloads.mig_device_of(parent, "1g.10gb")))
    pods.apply(workloads.template("whole", workloads.gpus("gpu", workloads.is_whole_gpu(parent))))
    pods.apply(workloads.pod("small", templates=["slice"]))
    pods.wait_running("small")
    (made,) = dividing.mig_list(NODE)
    assert (made["gpu"], made["profile"]) == (1, "1g.10gb")
    assert workloads.visible_mig_devices(pods, "small") == {made["uuid"]}
    wait_status(pods, "small", {made["uuid"]})
    pods.apply(workloads.pod("large", templates=["whole"]))
    workloads.wait_unschedulable(pods, "large")
    pods.delete("pod", "small")
    pods.wait_running("large")
    assert dividing.mig_list(NODE) == []
    assert workloads.visible_gpus(pods, "large").uuids == {parent}


def test_four_pods_have_a_slice_each_of_one_gpu_and_see_their_own_only(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if dividing.release < api_versions.PARTITIONS_SINCE:
        check_told_without_partitions(dividing)
        return
    parent = dividing.device(NODE, "gpu-2").uuid
    pods.apply(workloads.template("slice", workloads.mig_device_of(parent, "1g.10gb")))
    names = [f"p{number}" for number in range(4)]
    for name in names:
        pods.apply(workloads.pod(name, templates=["slice"]))
    pods.wait_running(*names)
    seen = [workloads.visible_mig_devices(pods, name) for name in names]
    assert [len(each) for each in seen] == [1] * 4
    assert frozenset.union(*seen) == {each["uuid"] for each in dividing.mig_list(NODE)}
    for name in names:
        pods.delete("pod", name)
    dividing.wait_no_mig_devices(NODE)


def test_two_small_slices_leave_room_for_the_largest_beside_them(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    """4g.40gb can only begin at slice 0, and the scheduler takes the first place that is listed."""
    if dividing.release < api_versions.PARTITIONS_SINCE:
        check_told_without_partitions(dividing)
        return
    parent = dividing.device(NODE, "gpu-4").uuid
    for name, profile in (("small", "1g.10gb"), ("large", "4g.40gb")):
        pods.apply(workloads.template(name, workloads.mig_device_of(parent, profile)))
    for pod, template in (("a", "small"), ("b", "small"), ("c", "large")):
        pods.apply(workloads.pod(pod, templates=[template]))
        pods.wait_running(pod)
    for pod in ("a", "b", "c"):
        pods.delete("pod", pod)
    dividing.wait_no_mig_devices(NODE)


def test_four_slices_of_one_gpu_are_made_for_one_pod(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if dividing.release < api_versions.PARTITIONS_SINCE:
        check_told_without_partitions(dividing)
        return
    is_small = f"{workloads.attribute('profile')} == '1g.10gb'"
    request = workloads.mig_devices("slices", is_small, count=4)
    pods.apply(workloads.template("four", request, same=PARENT))
    pods.apply(workloads.pod("p", templates=["four"]))
    pods.wait_running("p")
    node = pods.get("pod", "p")["spec"]["nodeName"]
    made = dividing.mig_list(node)
    assert len({each["gpu"] for each in made}) == 1
    assert workloads.visible_mig_devices(pods, "p") == {each["uuid"] for each in made}
    wait_status(pods, "p", {each["uuid"] for each in made})
    pods.delete("pod", "p")
    dividing.wait_no_mig_devices(node)


def test_a_pod_keeps_its_slice_over_a_restart_of_the_plugin(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if dividing.release < api_versions.PARTITIONS_SINCE:
        check_told_without_partitions(dividing)
        return
    parent = dividing.device(NODE, "gpu-3").uuid
    pods.apply(workloads.template("slice", workloads.mig_device_of(parent, "2g.20gb")))
    pods.apply(workloads.pod("p", templates=["slice"]))
    pods.wait_running("p")
    before = dividing.mig_list(NODE)
    dividing.restart_plugin(NODE)
    assert dividing.mig_list(NODE) == before
    assert workloads.visible_mig_devices(pods, "p") == {each["uuid"] for each in before}
    pods.delete("pod", "p")
    dividing.wait_no_mig_devices(NODE)


def test_a_slice_takes_the_config_for_turns_and_its_gpu_keeps_its_time_slice(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if dividing.release < api_versions.PARTITIONS_SINCE:
        check_told_without_partitions(dividing)
        return
    parent = dividing.device(NODE, "gpu-4").uuid
    listed = NVIDIA_SMI, "compute-policy", "-i", parent, "--list"
    before = dividing.exec_on_node(NODE, *listed)
    pods.apply(
        workloads.template("slice", workloads.mig_device_of(parent, "1g.10gb"), config=IN_TURNS)
    )
    pods.apply(workloads.pod("p", templates=["slice"]))
    pods.wait_running("p")
    assert len(workloads.visible_mig_devices(pods, "p")) == 1
    assert dividing.exec_on_node(NODE, *listed) == before
    pods.delete("pod", "p")
    dividing.wait_no_mig_devices(NODE)


def test_a_monitor_of_all_gpus_starts_before_claims_and_waits_for_those_that_were_before(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    """Kubernetes counts what a device with admin access consumes (kubernetes/kubernetes#140729)."""
    if dividing.release < api_versions.PARTITIONS_SINCE:
        check_told_without_partitions(dividing)
        return
    workloads.allow_admin_access(pods)
    every = {"deviceClassName": workloads.DEVICE_CLASS, "allocationMode": "All"}
    pods.apply(
        workloads.template("all", {"name": "all", "exactly": {**every, "adminAccess": True}})
    )
    parent = dividing.device(NODE, "gpu-5").uuid
    pods.apply(workloads.template("slice", workloads.mig_device_of(parent, "1g.10gb")))
    monitor = workloads.pod("monitor", templates=["all"])
    monitor["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODE}

    pods.apply(workloads.pod("before", templates=["slice"]))
    pods.wait_running("before")
    pods.apply(monitor)
    assert "cannot allocate all claims" in workloads.wait_unschedulable(pods, "monitor")
    assert pods.get("pod", "monitor")["status"]["phase"] == "Pending"
    pods.delete("pod", "before")

    pods.wait_running("monitor")
    there = {device.uuid for device in dividing.devices() if is_gpu_of(device, NODE)}
    assert workloads.visible_gpus(pods, "monitor").uuids == there
    pods.apply(workloads.pod("after", templates=["slice"]))
    pods.wait_running("after")
    assert len(workloads.visible_mig_devices(pods, "after")) == 1
    pods.delete("pod", "monitor", "after")
    dividing.wait_no_mig_devices(NODE)


def is_gpu_of(device: Device, node: str) -> bool:
    return device.node == node and device.attributes["type"] == "gpu"


def wait_status(pods: Kubectl, pod: str, uuids: set[str]) -> None:
    """Wait until the status of the pod's claim has the UUIDs of its devices."""
    (claim,) = workloads.claims_of(pods, pod)

    def missing() -> str | None:
        status = pods.get("resourceclaim", claim["metadata"]["name"])["status"]
        found = {each["data"]["uuid"] for each in status.get("devices") or ()}
        return None if found == uuids else f"{found}, not {uuids}"

    pods.wait(missing, "the status of the claim")


def check_told_without_partitions(cluster: Cluster) -> None:
    """Check that whole GPUs are offered, and that the Node says why no slices are."""
    assert partitions(cluster) == []
    assert cluster.device(NODE, "gpu-1").uuid
    kubectl = cluster.kubectl.in_namespace("default")

    def missing() -> str | None:
        said = [text for _, text in kubectl.events(NODE)]
        return None if any("DRAPartitionableDevices" in text for text in said) else str(said)

    kubectl.wait(missing, "an Event of the Node about DRAPartitionableDevices")


def partitions(cluster: Cluster) -> list[str]:
    """The published partitions of the node."""
    here = (device for device in cluster.devices() if device.node == NODE)
    return [device.name for device in here if device.attributes["type"] == "mig"]
