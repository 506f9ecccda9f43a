"""What happens to GPUs that are held when a node, its kubelet or a pod goes without asking."""

import shlex
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import workloads
from cluster import DRIVER, NAMESPACE, RELEASE, Cluster
from kubectl import Kubectl
from prepares import insist, is_refused

NODE = "node-1"
SLOW_MS = 3000
"""What an NVML call takes when a prepare is to be caught in the midst of it."""

STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
"""Ends only when it is killed, which a kubelet does when the pod's own time for that is over."""

STUBBORN_S = 8
"""That time: long beside what the next pod takes to reach its prepare, and to be told to wait."""

CALL_S = 45
"""The kubelet's deadline for a prepare; what comes later needs its next attempt, 60 to 90 s on."""

BACK_S = 120
"""Two attempts of the kubelet."""


@pytest.mark.protocol("P13")
def test_a_pod_starts_although_its_kubelet_was_restarted_during_the_call(
    idle: Cluster, pods: Kubectl
) -> None:
    device = idle.device(NODE, "gpu-1")
    pods.apply(workloads.template("that", workloads.gpus("gpu", workloads.is_gpu(device.uuid))))
    with idle.slowed(NODE, 1, SLOW_MS):
        pods.apply(workloads.pod("p", templates=["that"]))
        pods.wait(lambda: None if prepares(idle) else "no call", "the prepare to be under way")
        idle.lab.must("restart", f"{NODE}/kubelet")
        # It may meet the pod before it meets the plugin, and would look again a minute later.
        insist(pods, "p")
    assert workloads.view(pods, "p").uuids == {device.uuid}
    assert idle.held(NODE) == 1
    pods.delete("pod", "p")
    pods.wait(partial(still_held, idle), "the GPU to be given back")


@pytest.mark.protocol("P31")
@pytest.mark.timeout(2 * BACK_S, func_only=True)
def test_a_pod_has_its_gpu_again_after_its_node_was_rebooted(idle: Cluster, pods: Kubectl) -> None:
    device = idle.device(NODE, "gpu-2")
    pods.apply(workloads.template("that", workloads.gpus("gpu", workloads.is_gpu(device.uuid))))
    pods.apply(workloads.pod("p", templates=["that"]))
    pods.wait_running("p")
    before = pods.get("pod", "p")["status"]["containerStatuses"][0]["containerID"]
    idle.reboot(NODE)
    # The kubelet met the pod before the plugin was back, and would try again after a minute.
    pods.run("annotate", "pod", "p", "tests/again=now")

    refused = partial(is_refused, idle, NODE, pods, "p")

    def gone_by() -> str | None:
        status = pods.get("pod", "p")["status"]["containerStatuses"][0]
        is_another = status.get("containerID") != before and status["ready"]
        return None if is_another or refused() else f"{status}; {pods.not_ready('p')}"

    pods.wait(gone_by, "the pod to run in a new container", timeout_s=BACK_S)
    if not refused():
        assert workloads.view(pods, "p").uuids == {device.uuid}
    assert idle.held(NODE) == 1
    how = ("--force", "--grace-period=0") if refused() else ()
    pods.run("delete", "pod", "p", *how)
    pods.wait(partial(still_held, idle), "the GPU to be given back")


@pytest.mark.protocol("P25")
def test_the_gpu_of_a_force_deleted_pod_is_given_on_as_soon_as_the_kubelet_has_let_go(
    idle: Cluster, pods: Kubectl
) -> None:
    device = idle.device(NODE, "gpu-3")
    pods.apply(workloads.template("that", workloads.gpus("gpu", workloads.is_gpu(device.uuid))))
    old = workloads.pod("old", templates=["that"])
    old["spec"]["containers"][0]["command"] = STUBBORN
    old["spec"]["terminationGracePeriodSeconds"] = STUBBORN_S
    pods.apply(old)
    pods.wait_running("old")
    (claim,) = workloads.claims_of(pods, "old")
    pods.run("delete", "pod", "old", "--force", "--grace-period=0", "--wait=false")
    pods.apply(workloads.pod("new", templates=["that"]))
    pods.wait(partial(silent_about, pods, "new", claim), "an Event that says who holds the GPU")
    pods.wait_running("new", timeout_s=CALL_S)
    assert workloads.view(pods, "new").uuids == {device.uuid}
    assert idle.held(NODE) == 1
    assert "cannot be told" not in idle.driver.logs(idle.plugin(NODE))


@pytest.mark.protocol("P28")
def test_an_admins_claim_for_the_gpu_that_the_container_has_anyhow_adds_nothing(
    idle: Cluster, pods: Kubectl
) -> None:
    device = idle.device(NODE, "gpu-4")
    wanted = workloads.is_gpu(device.uuid)
    workloads.allow_admin_access(pods)
    pods.apply(workloads.claim("user", workloads.gpus("gpu", wanted)))
    pods.apply(workloads.claim("admin", workloads.gpus("gpu", wanted, admin=True)))
    pods.apply(workloads.pod("both", claims=["user", "admin"]))
    pods.apply(workloads.claim("other-admin", workloads.gpus("gpu", wanted, admin=True)))
    pods.apply(workloads.pod("watcher", claims=["other-admin"]))
    pods.wait_running("both", "watcher")
    alone = workloads.view(pods, "watcher")
    assert workloads.view(pods, "both") == alone
    assert alone.uuids == {device.uuid}
    mounted = {name: mounts(pods, name) for name in ("both", "watcher")}
    assert mounted["both"] == mounted["watcher"]
    assert len(mounted["both"]) == len(set(mounted["both"]))
    pods.delete("pod", "both")
    assert workloads.view(pods, "watcher") == alone


def test_an_uninstall_leaves_pods_running_and_says_what_they_hold(
    idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    device = idle.device(NODE, "gpu-5")
    pods.apply(workloads.template("that", workloads.gpus("gpu", workloads.is_gpu(device.uuid))))
    pods.apply(workloads.pod("p", templates=["that"]))
    pods.wait_running("p")
    (claim,) = workloads.claims_of(pods, "p")
    name = claim["metadata"]["name"]
    assert f"{pods.namespace} p {name} {DRIVER}" in holders(idle)
    with ThreadPoolExecutor(1) as thread:
        log = thread.submit(idle.driver.run, "logs", "--follow", "--tail=1", idle.plugin(NODE))
        idle.uninstall()
    (farewell,) = [line for line in log.result().splitlines() if "what is held stays held" in line]
    assert f"{pods.namespace}/{name}" in farewell
    assert workloads.view(pods, "p").uuids == {device.uuid}
    pods.run("delete", "pod", "p", "--wait=false")
    pods.wait(partial(not_ended, pods, "p"), "the container to end")
    assert pods.exists("pod", "p"), "who ends a pod that holds a GPU, without the driver?"
    idle.install(*settings)
    pods.wait(lambda: "it is" if pods.exists("pod", "p") else None, "the pod to go", CALL_S)
    assert idle.held(NODE) == 0


def holders(cluster: Cluster) -> list[str]:
    """What the command lists that an install tells of: a line per claim, its columns."""
    notes = cluster.helm("get", "notes", RELEASE, "--namespace", NAMESPACE)
    (line,) = [line.strip() for line in notes.splitlines() if "get resourceclaims" in line]
    command, _, pattern = line.removeprefix("kubectl ").partition(" | grep ")
    lines = cluster.kubectl.run(*shlex.split(command)).splitlines()
    return [" ".join(line.split()) for line in lines if pattern in line]


def not_ended(pods: Kubectl, name: str) -> str | None:
    states = [each["state"] for each in pods.get("pod", name)["status"]["containerStatuses"]]
    return None if all("terminated" in state for state in states) else str(states)


def prepares(cluster: Cluster) -> float:
    """How many prepares the plugin is at."""
    samples = cluster.metrics(NODE).items()
    return sum(
        value
        for name, value in samples
        if name.startswith("nvidia_dra_requests_inflight") and "Unprepare" not in name
    )


def still_held(cluster: Cluster) -> str | None:
    held = cluster.held(NODE)
    return f"{held} are held" if held else None


def silent_about(pods: Kubectl, pod: str, claim: workloads.Manifest) -> str | None:
    """Nothing, once an Event of the pod names the claim that holds its GPU."""
    told = pods.events(pod)
    holder = f"{pods.namespace}/{claim['metadata']['name']}"
    said = [message for reason, message in told if reason == "DeviceInUse"]
    return None if any(holder in message for message in said) else str(told)


def mounts(pods: Kubectl, name: str) -> list[str]:
    """Where a container has something of the driver mounted."""
    lines = pods.exec(name, "cat", "/proc/self/mountinfo").splitlines()
    return sorted(line.split()[4] for line in lines if "/driver/" in line.split()[3])
