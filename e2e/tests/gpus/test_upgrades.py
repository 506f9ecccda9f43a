# SPDX-License-Identifier: Apache-2.0
"""The latest release is upgraded to this state while pods hold GPUs and others come and go.

`e2e/tests/members/test_upgrades.py` has all components and the way back, behind `--soak`.
"""

import time

import pytest
from nvdra_testing.cluster import disturbances, former_images, released_driver, workloads
from nvdra_testing.cluster.installation import GPU_PLUGIN, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_load import Stream

NODES = ("node-1", "node-2")
ONE_GPU = 'test "$(nvidia-smi -L | wc -l)" = 1 && sleep 1'
DONE_S = 120
"""A kubelet may repeat a failed prepare after more than a minute."""


@pytest.mark.soak("builds images of released versions")
@pytest.mark.timeout(400, func_only=True)
def test_no_pod_notices_an_upgrade_from_the_latest_release(
    idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    tags = former_images.load(idle.lab, GPU_PLUGIN.name)
    idle.uninstall()
    try:
        released_driver.install(idle, tags, *settings)
        plugins = f"daemonset/{RELEASE}-{GPU_PLUGIN.name}"
        idle.driver_namespace.run("rollout", "status", plugins, "--timeout=50s")
        pods.apply(workloads.template("gpu", workloads.gpus("gpu")))
        pods.apply(workloads.pod("held", templates=["gpu"]))
        pods.wait_running("held")
        gpu, before = workloads.visible_gpus(pods, "held"), container(pods)
        streams = [Stream(f"gpus-{node}", node, "gpu", 1, ONE_GPU) for node in NODES]
        with disturbances.watched(idle, pods, streams) as watch:
            began = time.monotonic()
            idle.install(*settings, wait_s=120)
            watch.load.wait_succeeded(DONE_S)
            report = watch.report(began)
    finally:
        idle.install(*settings, wait_s=120)
    print(report)
    report.check_none()
    assert container(pods) == before
    assert workloads.visible_gpus(pods, "held") == gpu
    pods.delete("pod", "held")


def container(pods: Kubectl) -> tuple[str, int]:
    """The container of the pod that runs throughout, and how often it was restarted."""
    (status,) = pods.get("pod", "held")["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]
