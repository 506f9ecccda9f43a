"""Pods that share a GPU or a MIG device by MPS, and what is left of it afterwards: nothing.

The driver is installed with all its gates for single GPUs at once for these tests, as nothing of
one feature may disturb another one.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nvdra_lab import model
from nvdra_testing.cluster import mps_daemons, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.mps_daemons import OUT_OF_MEMORY, CudaView
from nvdra_testing.cluster.pod_prepares import retry_until_ready

NODE = "node-1"
MPS = "--set=global.featureGates.MPSSupport=true"
GATES = [
    MPS,
    *(
        f"--set=global.featureGates.{gate}=true"
        for gate in (
            "ConsumableShares",
            "DynamicMIG",
            "NVMLDeviceHealthCheck",
            "TimeSlicingSettings",
        )
    ),
]
FOUR_SHARES = "--set-string=nvdra-gpu-plugin.kubeletPlugin.consumableShares=4"
HAS_PARTITIONS = (1, 36)
"""Partitions and consumable capacity are served by default from this release on."""

QUICKSTART = Path(__file__).parents[2] / "quickstarts/15-an-mps-pair.yaml"
NVIDIA_SMI = f"{model.DRIVER_ROOT}/usr/bin/nvidia-smi"

HALF = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
HALF_OF_AN_H100 = CudaView((0, 0), multiprocessors=66, memory_mib=10240)
A_WHOLE_H100 = CudaView((0, 0), multiprocessors=132, memory_mib=81559)
LONG_TURNS = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
ENDING = "ending"
LINGERING = ["sh", "-c", f"trap 'echo {ENDING}' TERM; while true; do sleep 0.1; done"]
"""Says that it is to end, and goes on."""


@pytest.fixture(scope="module")
def sharing(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while the driver does all that it can with single GPUs."""
    install(cluster, *settings, *GATES)
    yield cluster
    cluster.install(*settings)


def test_two_pods_compute_side_by_side_within_their_limits_and_nothing_is_left_of_it(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    pods.apply(QUICKSTART)
    pods.wait_running("mps-a", "mps-b")
    claim = pods.get("resourceclaim", "shared-by-mps")
    (device,) = sharing.allocated_devices(claim)
    for name in ("mps-a", "mps-b"):
        wait_log(pods, name, "computing")
        assert pods.logs(name).splitlines()[0] == "66 multiprocessors, 10240 MiB of memory"
        assert workloads.visible_gpus(pods, name).uuids == {device.uuid}
    assert mps_daemons.clients(pods, "mps-a") == 2
    within = replace(HALF_OF_AN_H100, allocated=(0, OUT_OF_MEMORY, 0))
    assert mps_daemons.cuda_view(pods, "mps-b", 8192, 2049, 2048) == within
    name = mps_daemons.deployment_of(sharing, claim)
    (daemon,) = mps_daemons.daemon_pods(sharing)
    assert daemon["metadata"]["labels"]["app"] == name
    assert daemon["spec"]["nodeName"] == device.node
    assert mps_daemons.directories(sharing, device.node) == [
        name.removeprefix("mps-control-daemon-")
    ]
    assert mps_daemons.compute_mode(sharing, device.node, device.uuid) == "exclusive_process"
    pods.delete("pod", "mps-a", "mps-b")
    mps_daemons.wait_gone(sharing, device.node)
    assert mps_daemons.compute_mode(sharing, device.node, device.uuid) == "default"


def test_containers_of_a_pod_share_its_gpu_and_the_next_pod_has_all_of_it(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = sharing.device(NODE, "gpu-1")
    request = workloads.gpus("gpu", workloads.is_gpu_with_uuid(device.uuid))
    pods.apply(workloads.template("half", request, config=mps_daemons.config(**HALF)))
    pods.apply(workloads.template("whole", request))
    both = {"a": ["half"], "b": ["half"]}
    pods.apply(
        mps_daemons.python_pod(workloads.pod("sharing", templates=["half"], containers=both))
    )
    pods.wait_running("sharing")
    (claim,) = workloads.claims_of(pods, "sharing")
    assert mps_daemons.deployments(sharing) == [mps_daemons.deployment_of(sharing, claim)]
    for container in both:
        assert workloads.visible_gpus(pods, "sharing", container).uuids == {device.uuid}
        assert mps_daemons.cuda_view(pods, "sharing", container=container) == HALF_OF_AN_H100
    pods.apply(mps_daemons.python_pod(workloads.pod("alone", templates=["whole"])))
    workloads.wait_unschedulable(pods, "alone")
    pods.delete("pod", "sharing")
    pods.wait_running("alone")
    assert mps_daemons.cuda_view(pods, "alone") == A_WHOLE_H100
    mps_daemons.wait_gone(sharing, NODE)


def test_a_mig_device_is_made_shared_by_mps_and_destroyed(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if sharing.release < HAS_PARTITIONS:
        pytest.skip("partitions are not published by default in this release of Kubernetes")
    share_a_mig_device(sharing, pods, sharing.device(NODE, "gpu-2").uuid)


def test_a_pair_computes_on_while_the_plugin_is_restarted(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    pods.apply(QUICKSTART)
    pods.wait_running("mps-a", "mps-b")
    (device,) = sharing.allocated_devices(pods.get("resourceclaim", "shared-by-mps"))
    for name in ("mps-a", "mps-b"):
        wait_log(pods, name, "computing")
    daemons = mps_daemons.daemon_pods(sharing)
    sharing.restart_plugin(device.node)
    pods.wait_running("mps-a", "mps-b")
    assert mps_daemons.clients(pods, "mps-a") == 2
    assert [uid(each) for each in mps_daemons.daemon_pods(sharing)] == list(map(uid, daemons))
    pods.delete("pod", "mps-a", "mps-b")
    mps_daemons.wait_gone(sharing, device.node)


def test_a_daemons_pod_that_is_deleted_comes_back_with_its_limits(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = sharing.device(NODE, "gpu-3")
    apply_shared(pods, device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("before", claims=["shared"])))
    pods.wait_running("before")
    assert mps_daemons.cuda_view(pods, "before") == HALF_OF_AN_H100
    (old,) = mps_daemons.daemon_pods(sharing)
    sharing.driver_namespace.delete("pod", old["metadata"]["name"])
    wait_ready_daemon(sharing, uid(old))
    assert mps_daemons.cuda_view(pods, "before") == HALF_OF_AN_H100
    pods.apply(mps_daemons.python_pod(workloads.pod("after", claims=["shared"])))
    pods.wait_running("after")
    assert mps_daemons.cuda_view(pods, "after") == HALF_OF_AN_H100
    pods.delete("pod", "before", "after")
    mps_daemons.wait_gone(sharing, NODE)
    assert mps_daemons.compute_mode(sharing, NODE, device.uuid) == "default"


def test_a_claim_has_a_gpu_in_turns_and_another_one_by_mps(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    of_both = workloads.template(
        "both",
        *(
            workloads.gpus(name, f"{is_whole()} && {workloads.is_gpu_with_uuid(uuid)}")
            for name, uuid in (
                ("turns", sharing.device(NODE, "gpu-6").uuid),
                ("pair", sharing.device(NODE, "gpu-7").uuid),
            )
        ),
        config={"turns": LONG_TURNS, "pair": mps_daemons.config(**HALF)},
    )
    pods.apply(of_both)
    uses = {f"{name}-{side}": [f"both/{name}"] for name in ("turns", "pair") for side in "ab"}
    pods.apply(mps_daemons.python_pod(workloads.pod("p", templates=["both"], containers=uses)))
    pods.wait_running("p")
    for container in uses:
        expected = HALF_OF_AN_H100 if container.startswith("pair") else A_WHOLE_H100
        assert mps_daemons.cuda_view(pods, "p", container=container) == expected
    pods.delete("pod", "p")
    mps_daemons.wait_gone(sharing, NODE)


@pytest.mark.timeout(240)
def test_a_claim_whose_daemon_cannot_start_says_why_and_its_pod_starts_when_it_can(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = sharing.device(NODE, "gpu-4")
    apply_shared(pods, device.uuid)
    with sharing.failing(NODE, "mps:start"):
        pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
        pods.wait(lambda: None if reasons(pods, "p") else "none", "a failed prepare", 60)
        told = reasons(pods, "p")[0]
        assert "MpsNotReady: the MPS control daemon of claim" in told
        (daemon,) = mps_daemons.daemon_pods(sharing)
        assert f"pod {daemon['metadata']['name']}: " in told
        assert "nvidia-cuda-mps-control has ended with 1" in told
    # The kubelet waits before it starts a container anew that has failed several times.
    retry_until_ready(pods, "p", timeout_s=120)
    assert mps_daemons.cuda_view(pods, "p") == HALF_OF_AN_H100
    pods.delete("pod", "p")
    mps_daemons.wait_gone(sharing, NODE)


def test_a_claim_ends_while_the_api_server_is_away_and_the_rest_goes_when_it_is_back(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = sharing.device(NODE, "gpu-5")
    apply_shared(pods, device.uuid)
    manifest = workloads.pod("p", claims=["shared"])
    manifest["spec"]["containers"][0]["command"] = LINGERING
    manifest["spec"]["terminationGracePeriodSeconds"] = 3
    pods.apply(manifest)
    pods.wait_running("p")
    (daemon,) = mps_daemons.directories(sharing, NODE)
    pods.run("delete", "pod", "p", "--wait=false")
    wait_log(pods, "p", ENDING)
    with sharing.paused_api_server():
        sharing.kubectl.wait(
            lambda: (
                None
                if mps_daemons.compute_mode(sharing, NODE, device.uuid) == "default"
                else "it is not"
            ),
            "the compute mode to be as before",
            timeout_s=10,
        )
        assert mps_daemons.mounts(sharing, NODE) == []
        assert mps_daemons.directories(sharing, NODE) == [daemon], "until its Deployment is gone"
    mps_daemons.wait_gone(sharing, NODE)


def test_with_all_gates_each_gpu_of_a_node_is_shared_in_another_way(
    sharing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    by_mps, in_turns, divided, alone = (
        sharing.device(NODE, f"gpu-{index}").uuid for index in (1, 2, 3, 4)
    )
    apply_shared(pods, by_mps)
    wanted = workloads.gpus("gpu", workloads.is_gpu_with_uuid(in_turns))
    pods.apply(workloads.template("turns", wanted, config=LONG_TURNS))
    pods.apply(
        workloads.template("alone", workloads.gpus("gpu", workloads.is_gpu_with_uuid(alone)))
    )
    started = {"mps": {"claims": ["shared"]}, "turns": {"templates": ["turns"]}}
    started["alone"] = {"templates": ["alone"]}
    if sharing.release >= HAS_PARTITIONS:
        pods.apply(workloads.template("slice", slice_of(divided)))
        started["slice"] = {"templates": ["slice"]}
    for name, uses in started.items():
        pods.apply(mps_daemons.python_pod(workloads.pod(name, **uses)))
    pods.wait_running(*started)
    assert mps_daemons.cuda_view(pods, "mps") == HALF_OF_AN_H100
    assert mps_daemons.cuda_view(pods, "turns") == A_WHOLE_H100
    assert "Long" in sharing.exec_on_node(
        NODE, NVIDIA_SMI, "compute-policy", "-i", in_turns, "--list"
    )
    modes = [mps_daemons.compute_mode(sharing, NODE, each) for each in (by_mps, in_turns, alone)]
    assert modes == ["exclusive_process", "default", "default"]
    if "slice" in started:
        assert len(workloads.visible_mig_devices(pods, "slice")) == 1
    pods.delete("pod", *started)
    mps_daemons.wait_gone(sharing, NODE)
    wait_no_mig_devices(sharing)


def test_a_share_of_a_gpu_is_not_shared_by_mps_and_a_mig_device_beside_it_is(
    sharing: Cluster, idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    if sharing.release < HAS_PARTITIONS:
        pytest.skip("shares are not published by default in this release of Kubernetes")
    install(sharing, *settings, *GATES, FOUR_SHARES)
    apply_shared(pods, sharing.device(NODE, "gpu-1").uuid)
    pods.apply(workloads.pod("p", claims=["shared"]))
    pods.wait(lambda: None if reasons(pods, "p") else "none", "a failed prepare")
    assert "MPS is not available for a share of a device" in reasons(pods, "p")[0]
    share_a_mig_device(sharing, pods, sharing.device(NODE, "gpu-2").uuid)
    pods.delete("pod", "p")
    install(sharing, *settings, *GATES)


def test_with_its_gate_alone_a_pair_computes_side_by_side(
    cluster: Cluster,
    idle: Cluster,
    pods: Kubectl,
    settings: list[str],
    request: pytest.FixtureRequest,
) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("the same as with all gates, installed once more; --soak runs it")
    cluster.install(*settings, MPS)
    pods.apply(QUICKSTART)
    pods.wait_running("mps-a", "mps-b")
    (device,) = cluster.allocated_devices(pods.get("resourceclaim", "shared-by-mps"))
    for name in ("mps-a", "mps-b"):
        wait_log(pods, name, "computing")
    assert mps_daemons.clients(pods, "mps-a") == 2
    pods.delete("pod", "mps-a", "mps-b")
    mps_daemons.wait_gone(cluster, device.node)


def install(cluster: Cluster, *flags: str) -> None:
    """Install the driver, and wait until what it offers is published."""
    cluster.install(*flags)
    if cluster.release >= HAS_PARTITIONS:
        cluster.kubectl.wait(
            lambda: None if has_partitions(cluster) else "none", "partitions to be published"
        )


def has_partitions(cluster: Cluster) -> bool:
    """Whether MIG devices are offered on the node."""
    return any(
        device.node == NODE and device.attributes["type"] == "mig" for device in cluster.devices()
    )


def apply_shared(pods: Kubectl, gpu: str) -> None:
    """Create the claim `shared`: one GPU by MPS, half of it for each process."""
    request = workloads.gpus("gpu", f"{is_whole()} && {workloads.is_gpu_with_uuid(gpu)}")
    pods.apply(workloads.claim("shared", request, config=mps_daemons.config(**HALF)))


def is_whole() -> str:
    """A CEL expression that only whole GPUs meet: partitions have no UUID."""
    return f"{workloads.attribute('type')} == 'gpu'"


def slice_of(gpu: str) -> dict[str, Any]:
    """A request for a MIG device of three slices of a GPU."""
    return workloads.mig_devices(
        "mig",
        f"{workloads.attribute('profile')} == '3g.40gb'",
        f"{workloads.attribute('parentUUID')} == '{gpu}'",
    )


def share_a_mig_device(cluster: Cluster, pods: Kubectl, gpu: str) -> None:
    """Share a MIG device that is made for a pod among its containers, and see that it is gone."""
    half = mps_daemons.config("MigDeviceConfig", **HALF)
    pods.apply(workloads.template("half-a-slice", slice_of(gpu), config=half))
    both = {"a": ["half-a-slice"], "b": ["half-a-slice"]}
    pods.apply(
        mps_daemons.python_pod(
            workloads.pod("sharing", templates=["half-a-slice"], containers=both)
        )
    )
    pods.wait_running("sharing")
    (made,) = mig_devices(cluster)
    for container in both:
        assert workloads.visible_mig_devices(pods, "sharing", container) == {made["uuid"]}
        within = CudaView((0, 0), multiprocessors=30, memory_mib=10240, allocated=(OUT_OF_MEMORY,))
        assert mps_daemons.cuda_view(pods, "sharing", 10241, container=container) == within
    pods.delete("pod", "sharing")
    mps_daemons.wait_gone(cluster, NODE)
    wait_no_mig_devices(cluster)


def mig_devices(cluster: Cluster) -> list[dict[str, Any]]:
    """The MIG devices that exist on the node."""
    found: list[dict[str, Any]] = json.loads(cluster.simctl(NODE, "mig", "list", "--json"))
    return found


def wait_no_mig_devices(cluster: Cluster) -> None:
    """Wait until no MIG device exists on the node."""
    cluster.kubectl.wait(
        lambda: str(mig_devices(cluster)) if mig_devices(cluster) else None,
        "the MIG devices to be destroyed",
    )


def wait_log(pods: Kubectl, pod: str, word: str) -> None:
    """Wait until a pod has said something."""
    pods.wait(lambda: None if word in pods.logs(pod) else pods.logs(pod), f"{word!r} of pod {pod}")


def wait_ready_daemon(cluster: Cluster, former: str) -> None:
    """Wait until a daemon runs in another pod than the former one, and is ready."""

    def missing() -> str | None:
        found = mps_daemons.daemon_pods(cluster)
        states = [
            each["started"] for pod in found for each in pod["status"].get("containerStatuses", ())
        ]
        is_other = former not in map(uid, found)
        return None if is_other and states == [True] else str(states)

    cluster.kubectl.wait(missing, "another daemon's pod to be ready", timeout_s=60)


def reasons(pods: Kubectl, pod: str) -> list[str]:
    """The kubelet's messages about failed prepares of a pod."""
    events = pods.events(pod)
    return [message for reason, message in events if reason == "FailedPrepareDynamicResources"]


def uid(obj: dict[str, Any]) -> str:
    """The UID of an object."""
    return str(obj["metadata"]["uid"])
