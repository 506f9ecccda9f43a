# SPDX-License-Identifier: Apache-2.0
"""MPS control daemons that are deleted, start late or not at all; an API server that is away."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from nvdra_testing.cluster import mps_daemons, pod_prepares, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODE, OTHER_NODE = "node-1", "node-2"
GREETING = "get_server_list"
"""What the driver asks a daemon first, before it makes the settings."""

CHECKPOINT_S = 12
"""For writing a checkpoint: longer than it takes to end a daemon."""
ENDING = "ending"
END_FOLDER, END_FILE = "/run/mps-test", "now"
LINGERING = f"trap 'echo {ENDING}' TERM; until test -e /end/{END_FILE}; do sleep 0.1; done"
"""Says that it is to end, and ends when its node has the file."""

TRAINING = f"""
import ctypes, signal, sys, time

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert [cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)] == [0, 0]

def save(*_):
    time.sleep({CHECKPOINT_S})
    print("checkpoint", cuda.cuCtxSynchronize())
    sys.exit()

signal.signal(signal.SIGTERM, save)
print("computing")
while True:
    time.sleep(1)
"""


@pytest.mark.timeout(240, func_only=True)
def test_a_daemons_pod_that_is_deleted_comes_back_with_its_limits(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-3")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("before", claims=["shared"])))
    pods.wait_running("before")
    assert mps_daemons.cuda_view(pods, "before") == mps_daemons.HALF_OF_AN_H100
    (old,) = mps_daemons.daemon_pods(with_all_gates)
    delete_now(with_all_gates, old["metadata"]["name"])
    wait_ready_daemon(with_all_gates, old["metadata"]["uid"])
    assert mps_daemons.cuda_view(pods, "before") == mps_daemons.HALF_OF_AN_H100
    pods.apply(mps_daemons.python_pod(workloads.pod("after", claims=["shared"])))
    pods.wait_running("after")
    assert mps_daemons.cuda_view(pods, "after") == mps_daemons.HALF_OF_AN_H100
    pods.delete("pod", "before", "after")
    mps_daemons.wait_gone(with_all_gates, NODE)
    assert mps_daemons.compute_mode(with_all_gates, NODE, device.uuid) == "default"


@pytest.mark.timeout(240, func_only=True)
def test_a_deployment_that_somebody_deletes_is_created_again_while_its_pod_runs(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-6")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
    pods.wait_running("p")
    (old,) = mps_daemons.daemon_pods(with_all_gates)
    (name,) = mps_daemons.deployments(with_all_gates)
    label = f"app={name}"
    for kind in ("deployment", "replicaset"):
        with_all_gates.driver_namespace.run("delete", kind, "-l", label, "--cascade=orphan")
    assert mps_daemons.cuda_view(pods, "p") == mps_daemons.HALF_OF_AN_H100
    delete_now(with_all_gates, old["metadata"]["name"])
    wait_ready_daemon(with_all_gates, old["metadata"]["uid"])
    assert mps_daemons.deployments(with_all_gates) == [name]
    assert mps_daemons.cuda_view(pods, "p") == mps_daemons.HALF_OF_AN_H100
    pods.delete("pod", "p")
    mps_daemons.wait_gone(with_all_gates, NODE)


@pytest.mark.timeout(240, func_only=True)
def test_a_daemon_whose_deployment_is_deleted_goes_on_until_its_claim_ends(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-6")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
    pods.wait_running("p")
    (name,) = mps_daemons.deployments(with_all_gates)
    with_all_gates.driver_namespace.delete("deployment", name)
    with_all_gates.kubectl.wait(
        lambda: (
            None
            if all(
                "deletionTimestamp" in pod["metadata"]
                for pod in mps_daemons.daemon_pods(with_all_gates)
            )
            else "it is not"
        ),
        "the daemon's pod to be deleted",
    )
    assert mps_daemons.cuda_view(pods, "p") == mps_daemons.HALF_OF_AN_H100
    pods.delete("pod", "p")
    mps_daemons.wait_gone(with_all_gates, NODE)


@pytest.mark.timeout(240, func_only=True)
def test_a_client_that_comes_before_a_restarted_daemon_has_its_settings_does_not_undo_them(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-3")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
    pods.wait_running("p")
    (old,) = mps_daemons.daemon_pods(with_all_gates)
    with with_all_gates.slow_function(NODE, f"mps:{GREETING}", 4000):
        delete_now(with_all_gates, old["metadata"]["name"], "--wait=false")
        with_all_gates.kubectl.wait(
            lambda: None if is_greeted(with_all_gates, old["metadata"]["uid"]) else "none",
            "a daemon that starts",
        )
        mps_daemons.cuda_view(pods, "p")
    wait_ready_daemon(with_all_gates, old["metadata"]["uid"])
    assert mps_daemons.cuda_view(pods, "p") == mps_daemons.HALF_OF_AN_H100
    pods.delete("pod", "p")
    mps_daemons.wait_gone(with_all_gates, NODE)


def test_a_claim_whose_daemon_cannot_start_says_why_and_its_pod_starts_when_it_can(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-4")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    with with_all_gates.failing(NODE, "mps:start"):
        pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
        pods.wait(
            lambda: None if pod_prepares.failures(pods, "p") else "none", "a failed prepare", 120
        )
        told = pod_prepares.failures(pods, "p")[0]
        assert "MpsNotReady: the MPS control daemon of claim" in told
        (daemon,) = mps_daemons.daemon_pods(with_all_gates)
        assert f"pod {daemon['metadata']['name']}: " in told
        assert "nvidia-cuda-mps-control has ended with 1" in told
    # The kubelet waits before it starts a container anew that has failed several times.
    pod_prepares.retry_until_ready(pods, "p", timeout_s=120)
    assert mps_daemons.cuda_view(pods, "p") == mps_daemons.HALF_OF_AN_H100
    pods.delete("pod", "p")
    mps_daemons.wait_gone(with_all_gates, NODE)


def test_a_claim_ends_while_the_api_server_is_away_and_the_rest_goes_when_it_is_back(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-5")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(lingering_pod("p", "shared"))
    pods.wait_running("p")
    (daemon,) = mps_daemons.directories(with_all_gates, NODE)
    assert mps_daemons.compute_mode(with_all_gates, NODE, device.uuid) == "exclusive_process"
    mounted = {path.rpartition("/")[2] for path in mps_daemons.mounts(with_all_gates, NODE)}
    assert mounted == {"pipe", "shm"}
    pods.run("delete", "pod", "p", "--wait=false")
    mps_daemons.wait_log(pods, "p", ENDING)
    with with_all_gates.paused_api_server():
        with_all_gates.exec_on_node(NODE, "touch", f"{END_FOLDER}/{END_FILE}")
        with_all_gates.kubectl.wait(
            lambda: (
                None
                if mps_daemons.compute_mode(with_all_gates, NODE, device.uuid) == "default"
                else "it is not"
            ),
            "the compute mode to be as before",
            timeout_s=25,
        )
        with_all_gates.kubectl.wait(
            lambda: str(mps_daemons.mounts(with_all_gates, NODE) or "") or None,
            "the claim's memory to be unmounted",
        )
        assert mps_daemons.directories(with_all_gates, NODE) == [daemon], (
            "until its Deployment is gone"
        )
    mps_daemons.wait_gone(with_all_gates, NODE)
    with_all_gates.exec_on_node(NODE, "rm", "-r", END_FOLDER)


@pytest.mark.timeout(240, func_only=True)
def test_a_process_writes_its_checkpoint_while_its_node_is_drained(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-3")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    manifest = mps_daemons.python_pod(workloads.pod("p", claims=["shared"]))
    spec = manifest["spec"]
    spec["containers"][0]["command"] = ["python3", "-u", "-c", TRAINING]
    pods.apply({**manifest, "spec": {**spec, "terminationGracePeriodSeconds": 60}})
    pods.wait_running("p")
    mps_daemons.wait_log(pods, "p", "computing")
    log = subprocess.Popen(
        [*pods.argv(), "logs", "--follow", "p"], stdout=subprocess.PIPE, text=True
    )
    try:
        with_all_gates.kubectl.run(
            *("drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
            timeout_s=180,
        )
    finally:
        with_all_gates.kubectl.run("uncordon", NODE)
    said, _ = log.communicate(timeout=60)
    assert said.split() == ["computing", "checkpoint", "0"]
    mps_daemons.wait_gone(with_all_gates, NODE)


@pytest.mark.timeout(600, func_only=True)
def test_a_node_that_goes_for_good_takes_the_deployments_of_its_daemons_with_it(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(OTHER_NODE, "gpu-3")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
    pods.wait_running("p")
    assert len(mps_daemons.deployments(with_all_gates)) == 1
    with without_node(with_all_gates, OTHER_NODE):
        with_all_gates.kubectl.wait(
            lambda: str(mps_daemons.deployments(with_all_gates) or "") or None,
            "the daemon's Deployment to be deleted",
        )
    pods.run("delete", "pod", "p", "--ignore-not-found", "--force", "--grace-period=0")
    pods.delete("resourceclaim", "shared")
    mps_daemons.wait_gone(with_all_gates, OTHER_NODE)
    assert mps_daemons.compute_mode(with_all_gates, OTHER_NODE, device.uuid) == "default"


@contextmanager
def without_node(cluster: Cluster, node: str) -> Iterator[None]:
    """A node is taken away, with its object, as by an autoscaler; it is back after the block."""
    cluster.lab.run_checked("power-off", node)
    try:
        cluster.kubectl.delete("node", node)
        yield
    finally:
        cluster.lab.run_checked("power-on", node)
        cluster.kubectl.wait(
            lambda: None if node in cluster.nodes() else "it is not", f"{node} to be registered"
        )
        cluster.wait_ready(node)
        cluster.kubectl.wait(
            lambda: None if any(each.node == node for each in cluster.devices()) else "none",
            f"the GPUs of {node} to be published",
        )


def delete_now(cluster: Cluster, pod: str, *flags: str) -> None:
    """Delete a daemon's pod as an administrator does who does not wait for its clients.

    That is for a pod that has not been deleted yet: a kubelet does not shorten the wait of a stop
    that has begun.
    """
    cluster.driver_namespace.run("delete", "pod", pod, "--now", *flags, timeout_s=120)


def lingering_pod(name: str, claim: str) -> dict[str, Any]:
    """A pod that ends when its node has a file, and needs no API server for that."""
    manifest = workloads.pod(name, claims=[claim])
    spec = manifest["spec"]
    mount = {"name": "end", "mountPath": "/end"}
    spec["containers"][0] |= {"command": ["sh", "-c", LINGERING], "volumeMounts": [mount]}
    folder = {"path": END_FOLDER, "type": "DirectoryOrCreate"}
    spec |= {"volumes": [{"name": "end", "hostPath": folder}], "terminationGracePeriodSeconds": 60}
    return manifest


def wait_ready_daemon(cluster: Cluster, former: str) -> None:
    """Wait until a daemon runs in another pod than the former one, and is ready."""

    def missing() -> str | None:
        found = {
            pod["metadata"]["uid"]: [each["started"] for each in pod["status"]["containerStatuses"]]
            for pod in mps_daemons.daemon_pods(cluster)
            if "containerStatuses" in pod["status"]
        }
        is_other = former not in found
        return None if is_other and list(found.values()) == [[True]] else str(found)

    cluster.kubectl.wait(missing, "another daemon's pod to be ready", timeout_s=120)


def is_greeted(cluster: Cluster, former: str) -> bool:
    """Whether a daemon in another pod than the former one has been asked what it is asked first."""
    logs = [
        cluster.driver_namespace.run_unchecked("logs", pod["metadata"]["name"]).stdout
        for pod in mps_daemons.daemon_pods(cluster)
        if pod["metadata"]["uid"] != former
    ]
    return any(f"Cmd:{GREETING}" in log for log in logs)
