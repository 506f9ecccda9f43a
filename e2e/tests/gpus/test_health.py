# SPDX-License-Identifier: Apache-2.0
"""A GPU falls ill: users see it in slices and pods, new pods avoid it, and it heals.

The driver is installed with the gate NVMLDeviceHealthCheck for these tests. Kubernetes 1.32 has no
taints of devices, and kubelets before 1.34 do not watch the health of devices.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from nvdra_testing.cluster import api_versions, device_health, workloads
from nvdra_testing.cluster.installation import DRIVER, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODE = "node-1"
GATE = "--set=global.featureGates.NVMLDeviceHealthCheck=true"
EVICTS = "--set=nvdra-gpu-plugin.kubeletPlugin.deviceTaintEffect=NoExecute"
DIVIDES = "--set=global.featureGates.DynamicMIG=true"
SHOWS_MESSAGES = (1, 36)
TWO_INSTALLS_S = 600


@pytest.fixture(scope="module")
def watched(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while the driver watches the health of GPUs."""
    cluster.install(*settings, GATE)
    yield cluster
    cluster.install(*settings)


@pytest.mark.protocol("H1", "H5")
def test_a_gpu_that_falls_ill_gets_no_new_pods_its_pod_says_why_and_it_heals(
    watched: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    start_pod_with(watched, pods, "user", "gpu-1")
    if watched.release < device_health.HAS_TAINTS:
        check_told_without_taints(watched, pods, "user", 1)
        return
    wait_health(watched, pods, "user", "Healthy")
    with device_health.needs_reset(watched, NODE, "1", xid=48):
        said = "gpu.nvidia.com/xid=48:NoSchedule"
        device_health.wait_tainted(watched, NODE, "gpu-1", said)
        (taint,) = device_health.taints(watched, NODE, "gpu-1")
        assert taint["timeAdded"]
        assert device_health.taints(watched, NODE, "gpu-2") == []
        told = wait_health(watched, pods, "user", "Unhealthy")
        if watched.release >= SHOWS_MESSAGES:
            assert told["message"].startswith("gpu-1 has reported XID 48: drain and reset it")
        assert pods.not_ready("user") is None, "a pod that runs stays"
        pods.delete("pod", "user")
        pods.apply(workloads.pod("next", templates=["of-user"]))
        start_pod_with(watched, pods, "other", "gpu-2")
        assert "cannot allocate all claims" in workloads.wait_unschedulable(pods, "next")
        assert "allocation" not in workloads.claims_of(pods, "next")[0].get("status", {})
    device_health.wait_untainted(watched, NODE, "gpu-1")
    pods.wait_running("next")
    wait_health(watched, pods, "next", "Healthy")
    assert workloads.visible_gpus(pods, "next").uuids == {watched.device(NODE, "gpu-1").uuid}


@pytest.mark.protocol("H2")
def test_the_health_of_a_pods_gpu_is_known_again_after_a_restart_of_the_plugin(
    watched: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    start_pod_with(watched, pods, "user", "gpu-3")
    with device_health.needs_reset(watched, NODE, "3", xid=95):
        wait_health(watched, pods, "user", "Unhealthy")
        watched.restart_plugin(NODE)
        wait_health(watched, pods, "user", "Unhealthy")
    wait_health(watched, pods, "user", "Healthy")


@pytest.mark.timeout(TWO_INSTALLS_S, func_only=True)
def test_the_pod_of_a_mig_device_that_was_made_for_it_says_that_its_gpu_is_ill(
    watched: Cluster, idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    watched.install(*settings, GATE, DIVIDES)
    try:
        if watched.release < api_versions.PARTITIONS_SINCE:
            assert not [name for name in device_health.published(watched, NODE) if "-mig-" in name]
            return
        parent = watched.device(NODE, "gpu-2").uuid
        pods.apply(workloads.template("slice", workloads.mig_device_of(parent, "1g.10gb")))
        pods.apply(workloads.pod("user", templates=["slice"]))
        pods.wait_running("user")
        (claim,) = workloads.claims_of(pods, "user")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert result["device"].startswith("gpu-2-mig-1g10gb-")
        wait_health(watched, pods, "user", "Healthy")
        with device_health.needs_reset(watched, NODE, "2", xid=48):
            device_health.wait_tainted(watched, NODE, result["device"])
            told = wait_health(watched, pods, "user", "Unhealthy")
            if watched.release >= SHOWS_MESSAGES:
                assert told["message"].startswith("gpu-2 has reported XID 48: drain and reset it")
            assert pods.not_ready("user") is None, "a pod that runs stays"
        wait_health(watched, pods, "user", "Healthy")
        device_health.wait_untainted(watched, NODE, result["device"])
        pods.delete("pod", "user")
        watched.wait_no_mig_devices(NODE)
    finally:
        watched.install(*settings, GATE)


def test_a_lost_gpu_gets_no_new_pods_whether_or_not_there_are_taints(
    watched: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    watched.simctl(NODE, "gpu", "lose", "4")
    try:
        if watched.release >= device_health.HAS_TAINTS:
            device_health.wait_tainted(watched, NODE, "gpu-4")
            assert [each["key"] for each in device_health.taints(watched, NODE, "gpu-4")] == [
                "gpu.nvidia.com/gpu-lost"
            ]
        else:
            watched.kubectl.wait(
                lambda: "it is" if "gpu-4" in device_health.published(watched, NODE) else None,
                "gpu-4 to be published no more",
                device_health.HEALED_S,
            )
    finally:
        watched.simctl(NODE, "gpu", "restore", "4")
    device_health.wait_untainted(watched, NODE, "gpu-4")
    start_pod_with(watched, pods, "user", "gpu-4")


@pytest.mark.timeout(TWO_INSTALLS_S, func_only=True)
def test_where_the_operator_chose_noexecute_the_pod_of_a_gpu_that_falls_ill_is_deleted(
    watched: Cluster, idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    watched.install(*settings, GATE, EVICTS)
    try:
        start_pod_with(watched, pods, "user", "gpu-5")
        if watched.release < device_health.HAS_TAINTS:
            check_told_without_taints(watched, pods, "user", 5)
            return
        start_pod_with(watched, pods, "other", "gpu-6")
        with device_health.needs_reset(watched, NODE, "5", xid=48):
            pods.wait(
                lambda: "it is there" if pods.exists("pod", "user") else None,
                "the pod to be deleted",
                timeout_s=device_health.HEALED_S,
            )
            pods.wait_running("other")
    finally:
        watched.install(*settings, GATE)


def check_told_without_taints(cluster: Cluster, pods: Kubectl, user: str, gpu: int) -> None:
    """Check what is said of a GPU that falls ill where there are no taints: its pod stays."""
    kubectl = cluster.kubectl.in_namespace("default")
    with device_health.needs_reset(cluster, NODE, str(gpu), xid=48):

        def missing() -> str | None:
            said = [text for _, text in kubectl.events(NODE) if f"gpu-{gpu} " in text]
            return None if any("DRADeviceTaints" in text for text in said) else str(said)

        kubectl.wait(
            missing, f"an Event of the Node about gpu-{gpu}", timeout_s=device_health.HEALED_S
        )
        assert device_health.taints(cluster, NODE, f"gpu-{gpu}") == []
        assert pods.not_ready(user) is None, "a pod that runs stays"


def start_pod_with(cluster: Cluster, pods: Kubectl, name: str, device: str) -> None:
    """Start a pod with this GPU, and wait until it runs; its template is `of-NAME`."""
    wanted = workloads.is_gpu_with_uuid(cluster.device(NODE, device).uuid)
    pods.apply(workloads.template(f"of-{name}", workloads.gpus("gpu", wanted)))
    pods.apply(workloads.pod(name, templates=[f"of-{name}"]))
    pods.wait_running(name)


def wait_health(cluster: Cluster, pods: Kubectl, name: str, expected: str) -> dict[str, Any]:
    """Wait until the status of a pod says this of its GPU, and return it.

    Kubelets before 1.35 say nothing of claims from templates.
    """
    if cluster.release < device_health.SHOWS_HEALTH:
        assert device_health.of_pod(pods, name) == []
        return {}

    only = device_health.wait_health_of_pod(pods, name, expected)
    assert only["resourceID"].startswith(f"k8s.{DRIVER}/")
    return only
