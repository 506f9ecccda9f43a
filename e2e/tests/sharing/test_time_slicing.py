# SPDX-License-Identifier: Apache-2.0
"""Pods whose processes take turns on a GPU: its time slice while they run, and after them."""

from collections.abc import Iterator

import pytest
from nvdra_lab import model
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODE = "node-1"
GATE = "--set=global.featureGates.TimeSlicingSettings=true"
SHORT_TURNS = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}},
}
NVIDIA_SMI = f"{model.DRIVER_ROOT}/usr/bin/nvidia-smi"


@pytest.fixture(scope="module")
def sharing(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while the driver sets time slices."""
    cluster.install(*settings, GATE)
    yield cluster
    cluster.install(*settings)


def test_containers_of_a_pod_have_short_turns_on_their_gpu_which_end_with_the_pod(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = sharing.device(NODE, "gpu-2")
    wanted = workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid))
    pods.apply(workloads.template("turns", wanted, config=SHORT_TURNS))
    pods.apply(workloads.pod("p", templates=["turns"], containers={"a": ["turns"], "b": ["turns"]}))
    pods.wait_running("p")
    for container in ("a", "b"):
        assert workloads.visible_gpus(pods, "p", container).uuids == {device.uuid}
    assert "Short" in time_slices(sharing, device.uuid)
    pods.delete("pod", "p")
    sharing.kubectl.wait(
        lambda: "it is" if "Short" in time_slices(sharing, device.uuid) else None,
        "the time slice to be Short no more",
    )


def time_slices(cluster: Cluster, uuid: str) -> str:
    """What nvidia-smi says about the time slice of a GPU."""
    return cluster.exec_on_node(NODE, NVIDIA_SMI, "compute-policy", "-i", uuid, "--list")
