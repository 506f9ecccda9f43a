# SPDX-License-Identifier: Apache-2.0
"""Pods keep their GPUs while plugin and kubelet restart and the driver is reinstalled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_prepares import retry_until_ready

NODE = "node-1"


@pytest.mark.protocol("R3")
def test_pods_keep_their_gpus_and_new_ones_get_theirs_over_a_restart_of_the_plugin(
    idle: Cluster, pods: Kubectl
) -> None:
    with undisturbed(idle, pods):
        idle.restart_plugin(NODE)


@pytest.mark.protocol("R2")
def test_pods_keep_their_gpus_and_new_ones_get_theirs_over_a_restart_of_the_kubelet(
    idle: Cluster, pods: Kubectl
) -> None:
    # It may find the pod before the plugin, and would retry a minute later.
    with undisturbed(idle, pods, wait_started=partial(retry_until_ready, pods)):
        idle.lab.run_checked("restart", f"{NODE}/kubelet")


def test_pods_keep_their_gpus_while_the_driver_is_uninstalled_and_installed_again(
    idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    with undisturbed(idle, pods):
        idle.uninstall()
        idle.install(*settings)


@contextmanager
def undisturbed(
    cluster: Cluster, pods: Kubectl, wait_started: Callable[[str], object] | None = None
) -> Iterator[None]:
    """A pod has a GPU before the block and keeps it afterwards; then the GPU is released."""
    wait = wait_started or pods.wait_running
    ours, next_one = (cluster.device(NODE, name).uuid for name in ("gpu-3", "gpu-4"))
    for name, uuid in (("before", ours), ("after", next_one)):
        pods.apply(
            workloads.template(name, workloads.gpus("gpu", workloads.is_gpu_with_uuid(uuid)))
        )
    pods.apply(workloads.pod("before", templates=["before"]))
    pods.wait_running("before")
    running = container(pods, "before")
    yield
    pods.apply(workloads.pod("after", templates=["after"]))
    wait("after")
    pods.wait_running("before")
    assert container(pods, "before") == running
    assert workloads.visible_gpus(pods, "before").uuids == {ours}
    assert workloads.visible_gpus(pods, "after").uuids == {next_one}
    assert cluster.prepared_gpu_count(NODE) == 2
    pods.delete("pod", "before", "after")
    pods.wait(
        lambda: str(cluster.prepared_gpu_count(NODE)) if cluster.prepared_gpu_count(NODE) else None,
        "no GPU to be held",
    )


def container(pods: Kubectl, name: str) -> tuple[str, int]:
    """The container that the pod runs, and how often it was restarted."""
    (status,) = pods.get("pod", name)["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]
