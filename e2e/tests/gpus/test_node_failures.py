# SPDX-License-Identifier: Apache-2.0
"""Prepared GPUs survive the sudden end of a node, a kubelet or a pod."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.cluster import lab_command, workloads
from nvdra_testing.cluster.installation import DRIVER, NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.pod_prepares import is_status_rejected, retry_until_ready

NODE = "node-1"
SLOW_MS = 2000
"""How long an NVML call takes while a prepare is interrupted. A look at the GPU ends before the
10 s after which it is not offered any more."""

RELEASE_NVML = "gpu.nvidia.com/release-nvml"
DRIVER_ROOT = "/run/nvidia/driver"
UVM = "/dev/nvidia-uvm"
CLIENT_LABEL = "nvidia.com/gpu.deploy.client"
"""By which the GPU Operator makes third-party users of GPUs leave a node."""
ON_CLIENTS = r"nvdra-gpu-plugin.kubeletPlugin.nodeSelector.nvidia\.com/gpu\.deploy\.client=true"

CALL_S = 45
"""The kubelet's deadline for a prepare; the next attempt comes 60 to 90 s later."""

BACK_S = 120
"""Two attempts of the kubelet."""


@pytest.mark.protocol("P13")
def test_a_pod_starts_although_its_kubelet_was_restarted_during_the_call(
    idle: Cluster, pods: Kubectl
) -> None:
    device = idle.device(NODE, "gpu-1")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    with idle.slow_gpu(NODE, 1, SLOW_MS):
        catch_preparing(idle, pods)
        idle.lab.run_checked("restart", f"{NODE}/kubelet")
        # It may find the pod before the plugin, and would retry a minute later.
        retry_until_ready(pods, "p")
    assert workloads.visible_gpus(pods, "p").uuids == {device.uuid}
    assert idle.prepared_gpu_count(NODE) == 1
    pods.delete("pod", "p")
    pods.wait(partial(still_held, idle), "the GPU to be given back")


def catch_preparing(cluster: Cluster, pods: Kubectl) -> None:
    """Create a pod until its prepare is seen under way: a busy machine may look too late."""
    for _ in range(3):
        pods.apply(workloads.pod("p", templates=["that"]))
        pods.wait(
            lambda: None if prepares(cluster) or not pods.not_ready("p") else "no call",
            "the prepare to be under way",
        )
        if pods.not_ready("p"):
            return
        pods.delete("pod", "p")
    raise AssertionError("each prepare had ended when it was looked for")


@pytest.mark.protocol("P31")
@pytest.mark.timeout(600, func_only=True)
def test_a_pod_has_its_gpu_again_after_its_node_was_rebooted(idle: Cluster, pods: Kubectl) -> None:
    device = idle.device(NODE, "gpu-2")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    pods.apply(workloads.pod("p", templates=["that"]))
    pods.wait_running("p")
    before = pods.get("pod", "p")["status"]["containerStatuses"][0]["containerID"]
    idle.reboot(NODE)
    # The kubelet found the pod before the plugin was back, and would retry after a minute.
    pods.run("annotate", "pod", "p", "tests/again=now")

    refused = partial(is_status_rejected, idle, NODE, pods, "p")

    def gone_by() -> str | None:
        status = pods.get("pod", "p")["status"]["containerStatuses"][0]
        is_another = status.get("containerID") != before and status["ready"]
        return None if is_another or refused() else f"{status}; {pods.not_ready('p')}"

    pods.wait(gone_by, "the pod to run in a new container", timeout_s=BACK_S)
    if not refused():
        assert workloads.visible_gpus(pods, "p").uuids == {device.uuid}
    assert idle.prepared_gpu_count(NODE) == 1
    how = ("--force", "--grace-period=0") if refused() else ()
    pods.run("delete", "pod", "p", *how)
    pods.wait(partial(still_held, idle), "the GPU to be given back")


@pytest.mark.protocol("P25")
def test_the_gpu_of_a_force_deleted_pod_is_given_on_as_soon_as_the_kubelet_has_let_go(
    idle: Cluster, pods: Kubectl
) -> None:
    device = idle.device(NODE, "gpu-3")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    assert any(is_told_of_the_holder(pods, f"old-{attempt}") for attempt in range(3))
    pods.wait_running("new", timeout_s=CALL_S)
    assert workloads.visible_gpus(pods, "new").uuids == {device.uuid}
    assert idle.prepared_gpu_count(NODE) == 1
    assert "it is not known whether a pod" not in idle.driver_namespace.logs(idle.plugin_pod(NODE))


def is_told_of_the_holder(pods: Kubectl, name: str) -> bool:
    """Force-delete a pod that cannot end, and see whether the next one is told who holds its GPU.

    Now and then, the kubelet lets the container go at once although nobody can end it. Then the
    next pod has the GPU without an Event, and is deleted.
    """
    old = workloads.pod(name, templates=["that"])
    command = ["sh", "-c", f": {pods.namespace} {name}; trap '' TERM; sleep infinity & wait"]
    old["spec"]["containers"][0]["command"] = command
    pods.apply(old)
    pods.wait_running(name)
    (claim,) = workloads.claims_of(pods, name)
    pods.apply(workloads.pod("new", templates=["that"]))  # it waits for the claim of the old one
    with hung_runtime(command):
        pods.run("delete", "pod", name, "--force", "--grace-period=0", "--wait=false")
        pods.wait(
            lambda: None if not pods.not_ready("new") else silent_about(pods, "new", claim),
            "an Event that says who holds the GPU",
        )
        if silent_about(pods, "new", claim) is None:
            return True
    pods.delete("pod", "new")
    return False


@pytest.mark.protocol("P28")
def test_an_admins_claim_for_the_gpu_that_the_container_has_anyhow_adds_nothing(
    idle: Cluster, pods: Kubectl
) -> None:
    device = idle.device(NODE, "gpu-4")
    wanted = workloads.is_gpu_with_uuid(device.uuid)
    workloads.allow_admin_access(pods)
    pods.apply(workloads.claim("user", workloads.gpus("gpu", wanted)))
    pods.apply(workloads.claim("admin", workloads.gpus("gpu", wanted, admin=True)))
    pods.apply(workloads.pod("both", claims=["user", "admin"]))
    pods.apply(workloads.claim("other-admin", workloads.gpus("gpu", wanted, admin=True)))
    pods.apply(workloads.pod("watcher", claims=["other-admin"]))
    pods.wait_running("both", "watcher")
    alone = workloads.visible_gpus(pods, "watcher")
    assert workloads.visible_gpus(pods, "both") == alone
    assert alone.uuids == {device.uuid}
    mounted = {name: mounts(pods, name) for name in ("both", "watcher")}
    assert mounted["both"] == mounted["watcher"]
    assert len(mounted["both"]) == len(set(mounted["both"]))
    pods.delete("pod", "both")
    assert workloads.visible_gpus(pods, "watcher") == alone


def test_an_uninstall_leaves_pods_running_and_says_what_they_hold(
    idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    device = idle.device(NODE, "gpu-5")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    pods.apply(workloads.pod("p", templates=["that"]))
    pods.wait_running("p")
    (claim,) = workloads.claims_of(pods, "p")
    name = claim["metadata"]["name"]
    assert f"{pods.namespace} p {name} {DRIVER}" in holders(idle)
    argv = [*idle.driver_namespace.argv(), "logs", "--follow", "--tail=1", idle.plugin_pod(NODE)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as log:
        assert log.stdout is not None
        log.stdout.readline()  # from now on, nothing is missed
        idle.uninstall()
        rest = log.stdout.readlines()
    (farewell,) = [line for line in rest if "prepared claims stay prepared" in line]
    assert f"{pods.namespace}/{name}" in farewell
    assert workloads.visible_gpus(pods, "p").uuids == {device.uuid}
    pods.run("delete", "pod", "p", "--wait=false")
    pods.wait(partial(not_ended, pods, "p"), "the container to end")
    assert pods.exists("pod", "p"), "who ends a pod that holds a GPU, without the driver?"
    idle.install(*settings)
    pods.wait(lambda: "it is" if pods.exists("pod", "p") else None, "the pod to go", BACK_S)
    assert idle.prepared_gpu_count(NODE) == 0


def test_a_driver_container_that_is_replaced_is_seen(idle: Cluster, pods: Kubectl) -> None:
    device = idle.device(NODE, "gpu-6")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    with mounted_driver(idle, "first"):
        # The usual order of a boot: the plugin's container gets a copy of this mount.
        idle.restart_plugin(NODE)
    with mounted_driver(idle, "second"):
        pods.apply(workloads.pod("p", templates=["that"]))
        pods.wait_running("p")
        assert workloads.visible_gpus(pods, "p").uuids == {device.uuid}
        pods.delete("pod", "p")
    idle.wait_ready(NODE)


def test_gpus_wait_for_nvidia_uvm_which_comes_after_the_plugin_and_is_in_containers(
    idle: Cluster, pods: Kubectl
) -> None:
    """Something on the node has to load it. Without it, CUDA fails in containers without a word."""
    device = idle.device(NODE, "gpu-7")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    idle.exec_on_node(NODE, "mv", UVM, f"{UVM}-not-loaded")
    try:
        idle.restart_plugin(NODE)
        pods.wait(partial(still_offered, idle), "the GPUs not to be offered")
    finally:
        idle.exec_on_node(NODE, "mv", f"{UVM}-not-loaded", UVM)
    pods.wait(partial(undescribed, idle, UVM), "the CDI spec to have the device node")
    pods.apply(workloads.pod("p", templates=["that"]))
    pods.wait_running("p")
    assert pods.exec("p", "ls", UVM).strip() == UVM
    pods.delete("pod", "p")


@pytest.mark.timeout(600, func_only=True)
def test_the_gpu_operator_upgrades_the_driver_of_a_drained_node(
    idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    """In its order: pods go, the label of clients is paused, the module is unloaded and loaded."""
    device = idle.device(NODE, "gpu-6")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    for node in idle.nodes():
        idle.kubectl.run("label", "node", node, f"{CLIENT_LABEL}=true")
    try:
        idle.install(*settings, f"--set-string={ON_CLIENTS}")
        idle.wait_ready(NODE)
        pods.apply(workloads.pod("p", templates=["that"]))
        pods.wait_running("p")
        pods.delete("pod", "p")
        label = f"{CLIENT_LABEL}=paused-for-driver-upgrade"
        idle.kubectl.run("label", "--overwrite", "node", NODE, label)
        pods.wait(partial(plugin_is_there, idle), "the plugin to leave the node", BACK_S)
        idle.simctl(NODE, "gpu", "reset", "0")  # refused while a process has a GPU open
        with mounted_driver(idle, "upgraded"):
            idle.kubectl.run("label", "--overwrite", "node", NODE, f"{CLIENT_LABEL}=true")
            pods.apply(workloads.pod("p", templates=["that"]))
            pods.wait_running("p", timeout_s=BACK_S)
            assert workloads.visible_gpus(pods, "p").uuids == {device.uuid}
            pods.delete("pod", "p")
    finally:
        idle.install(*settings)
        for node in idle.nodes():
            idle.kubectl.run("label", "node", node, f"{CLIENT_LABEL}-")
        idle.wait_ready(NODE)


@pytest.mark.timeout(600, func_only=True)
def test_a_gpu_is_reset_while_the_plugin_has_released_nvml(idle: Cluster, pods: Kubectl) -> None:
    """A pod that comes meanwhile waits, is told why, and goes on by itself."""
    device = idle.device(NODE, "gpu-0")
    pods.apply(
        workloads.template("that", workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid)))
    )
    pods.wait(partial(not_refused, idle), "the reset to be refused while the plugin uses NVML")
    before = slice_versions(idle)
    idle.kubectl.run("annotate", "node", NODE, f"{RELEASE_NVML}=true")
    try:
        pods.wait(partial(not_said, idle, "NvmlReleased"), "the release")
        idle.simctl(NODE, "gpu", "reset", "0")
        pods.apply(workloads.pod("p", templates=["that"]))
        pods.wait(partial(not_told, pods, "p", "NvmlReleased"), "an Event of the pod")
        assert slice_versions(idle) == before
    finally:
        idle.kubectl.run("annotate", "node", NODE, f"{RELEASE_NVML}-")
    pods.wait_running("p", timeout_s=BACK_S)
    assert workloads.visible_gpus(pods, "p").uuids == {device.uuid}
    assert slice_versions(idle) == before
    said = idle.driver_namespace.run_unchecked(
        "exec", idle.plugin_pod(NODE), "--", "nvdra-gpu-plugin", "release"
    )
    assert said.returncode == 1
    assert f"{pods.namespace}/" in said.stderr, "an operator is told whose claim holds the GPU"
    pods.delete("pod", "p")


@contextmanager
def hung_runtime(command: Sequence[str]) -> Iterator[None]:
    """The parent of the container that runs this command is stopped, so that it cannot end.

    That is containerd's shim, or the conmon of CRI-O. A forced deletion leaves a container two
    seconds, whatever the pod says, and then kills it.
    """
    text = "".join(f"{word} " for word in command)
    (process,) = (pid for pid in lab_command.processes() if lab_command.command_line(pid) == text)
    parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    assert any(name in lab_command.command_line(parent) for name in ("containerd-shim", "conmon"))
    os.kill(parent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(parent, signal.SIGCONT)


@contextmanager
def mounted_driver(cluster: Cluster, name: str) -> Iterator[None]:
    """A driver container: its files are mounted on the driver root, and go when it ends."""
    files = f"/var/lib/driver-container-{name}"
    cluster.exec_on_node(NODE, "cp", "-a", DRIVER_ROOT, files)
    cluster.exec_on_node(NODE, "mount", "--bind", files, DRIVER_ROOT)
    try:
        yield
    finally:
        cluster.exec_on_node(NODE, "umount", "--lazy", DRIVER_ROOT)
        cluster.exec_on_node(NODE, "rm", "-rf", files)


def plugin_is_there(cluster: Cluster) -> str | None:
    """None once the node has no pod of the plugin, also none that ends."""
    label, on_node = cluster.component.label, f"--field-selector=spec.nodeName={NODE}"
    found = cluster.driver_namespace.get("pods", "", "-l", label, on_node)
    return f"{[pod['metadata']['name'] for pod in found]}" if found else None


def still_offered(cluster: Cluster) -> str | None:
    """None once no slice of the node has a GPU."""
    devices = [
        device["name"] for each in slices(cluster) for device in each["spec"].get("devices") or []
    ]
    return f"{devices}" if devices else None


def slice_versions(cluster: Cluster) -> set[str]:
    """The resourceVersions of the node's slices of GPUs."""
    return {each["metadata"]["resourceVersion"] for each in slices(cluster)}


def slices(cluster: Cluster) -> Sequence[Mapping[str, Any]]:
    """The node's slices of GPUs."""
    selector = f"--field-selector=spec.nodeName={NODE},spec.driver={DRIVER}"
    found: Sequence[Mapping[str, Any]] = cluster.kubectl.get("resourceslices", "", selector)
    return found


def not_refused(cluster: Cluster) -> str | None:
    """None once a GPU is not reset because the plugin has it open.

    A plugin opens NVML anew after the driver has changed. A GPU that no process has open is reset,
    which changes nothing for a plugin that opens it later.
    """
    said = cluster.lab.run("sim", NODE, "gpu", "reset", "0").stderr
    return None if "In use by another client" in said else f"the GPU was reset: {said}"


def not_said(cluster: Cluster, reason: str) -> str | None:
    """None once an Event of the Node has the reason."""
    return not_told(cluster.kubectl.in_namespace("default"), NODE, reason)


def not_told(kubectl: Kubectl, name: str, reason: str) -> str | None:
    told = kubectl.events(name)
    return None if any(each == reason for each, _ in told) else str(told)


def holders(cluster: Cluster) -> list[str]:
    """The output of the command that NOTES.txt names: a line per claim, in columns."""
    notes = cluster.helm("get", "notes", RELEASE, "--namespace", NAMESPACE)
    (line,) = [line.strip() for line in notes.splitlines() if "get resourceclaims" in line]
    command, _, pattern = line.removeprefix("kubectl ").partition(" | grep ")
    lines = cluster.kubectl.run(*shlex.split(command)).splitlines()
    return [" ".join(line.split()) for line in lines if pattern in line]


def not_ended(pods: Kubectl, name: str) -> str | None:
    states = [each["state"] for each in pods.get("pod", name)["status"]["containerStatuses"]]
    return None if all("terminated" in state for state in states) else str(states)


def prepares(cluster: Cluster) -> float:
    """The number of prepares in progress."""
    samples = cluster.metrics(NODE).items()
    return sum(
        value
        for name, value in samples
        if name.startswith("nvidia_dra_requests_inflight") and "Unprepare" not in name
    )


def still_held(cluster: Cluster) -> str | None:
    held = cluster.prepared_gpu_count(NODE)
    return f"{held} are held" if held else None


def undescribed(cluster: Cluster, node: str) -> str | None:
    """None once the last CDI spec of the node has a device node."""
    last = 'cat "$(ls -t /var/run/cdi/k8s.gpu.nvidia.com-device_*.yaml | head -1)" || true'
    spec = cluster.exec_on_node(NODE, "sh", "-c", last)
    return None if f"path: {node}\n" in spec else spec[-200:]


def silent_about(pods: Kubectl, pod: str, claim: workloads.Manifest) -> str | None:
    """None once an event of the pod names the claim that has its GPU."""
    told = pods.events(pod)
    holder = f"{pods.namespace}/{claim['metadata']['name']}"
    said = [message for reason, message in told if reason == "DeviceInUse"]
    return None if any(holder in message for message in said) else str(told)


def mounts(pods: Kubectl, name: str) -> list[str]:
    """The mounts of the driver in a container."""
    lines = pods.exec(name, "cat", "/proc/self/mountinfo").splitlines()
    return sorted(line.split()[4] for line in lines if "/driver/" in line.split()[3])
