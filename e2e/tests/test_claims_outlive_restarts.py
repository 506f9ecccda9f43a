"""What a pod holds does not depend on the processes that gave it: they come and go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import workloads
from cluster import Cluster
from kubectl import Kubectl
from prepares import insist

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
    # It may meet the pod before it meets the plugin, and would look again a minute later.
    with undisturbed(idle, pods, wait_started=partial(insist, pods)):
        idle.lab.must("restart", f"{NODE}/kubelet")


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
    """A pod that holds a GPU before the block goes on after it; then its GPU is given back."""
    wait = wait_started or pods.wait_running
    ours, next_one = (cluster.device(NODE, name).uuid for name in ("gpu-3", "gpu-4"))
    for name, uuid in (("before", ours), ("after", next_one)):
        pods.apply(workloads.template(name, workloads.gpus("gpu", workloads.is_gpu(uuid))))
    pods.apply(workloads.pod("before", templates=["before"]))
    pods.wait_running("before")
    running = container(pods, "before")
    yield
    pods.apply(workloads.pod("after", templates=["after"]))
    wait("after")
    pods.wait_running("before")
    assert container(pods, "before") == running
    assert workloads.view(pods, "before").uuids == {ours}
    assert workloads.view(pods, "after").uuids == {next_one}
    assert cluster.held(NODE) == 2
    pods.delete("pod", "before", "after")
    pods.wait(lambda: str(cluster.held(NODE)) if cluster.held(NODE) else None, "no GPU to be held")


def container(pods: Kubectl, name: str) -> tuple[str, int]:
    """Which container the pod runs, and how often it was started again."""
    (status,) = pods.get("pod", name)["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]
