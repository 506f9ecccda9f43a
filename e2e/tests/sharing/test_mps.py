# SPDX-License-Identifier: Apache-2.0
"""Pods that share a GPU or a MIG device by MPS, and what is left of it afterwards: nothing.

The driver has all its gates for single GPUs at once for these tests, as nothing of one feature may
disturb another one. `test_mps_failures.py` has what goes wrong.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from nvdra_lab import model
from nvdra_testing.cluster import api_versions, mps_daemons, pod_prepares, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.mps_daemons import CudaView

NODE = "node-1"
FOUR_SHARES = "--set-string=nvdra-gpu-plugin.kubeletPlugin.consumableShares=4"
THREE_SLICES = "3g.40gb"
MPS_ALONE = "--set=global.featureGates.MPSSupport=true"
QUICKSTART = Path(__file__).parents[2] / "quickstarts/15-an-mps-pair.yaml"
NVIDIA_SMI = f"{model.DRIVER_ROOT}/usr/bin/nvidia-smi"
A_WHOLE_H100 = CudaView((0, 0), multiprocessors=132, memory_mib=81559)
LONG_TURNS = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


def test_two_pods_compute_side_by_side_within_their_limits_and_nothing_is_left_of_it(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    pods.apply(QUICKSTART)
    pods.wait_running("mps-a", "mps-b")
    claim = pods.get("resourceclaim", "shared-by-mps")
    (device,) = with_all_gates.allocated_devices(claim)
    for name in ("mps-a", "mps-b"):
        mps_daemons.wait_log(pods, name, "computing")
        assert pods.logs(name).splitlines()[0] == "66 multiprocessors, 10240 MiB to allocate"
        assert workloads.visible_gpus(pods, name).uuids == {device.uuid}
    assert mps_daemons.clients(pods, "mps-a") == 2
    within = replace(mps_daemons.HALF_OF_AN_H100, allocated=(0, mps_daemons.OUT_OF_MEMORY, 0))
    assert mps_daemons.cuda_view(pods, "mps-b", 8192, 2049, 2048) == within
    name = mps_daemons.deployment_of(with_all_gates, claim)
    (daemon,) = mps_daemons.daemon_pods(with_all_gates)
    assert daemon["metadata"]["labels"]["app"] == name
    assert daemon["spec"]["nodeName"] == device.node
    assert mps_daemons.directories(with_all_gates, device.node) == [
        name.removeprefix("mps-control-daemon-")
    ]
    assert mps_daemons.compute_mode(with_all_gates, device.node, device.uuid) == "exclusive_process"
    pods.delete("pod", "mps-a", "mps-b")
    mps_daemons.wait_gone(with_all_gates, device.node)
    assert mps_daemons.compute_mode(with_all_gates, device.node, device.uuid) == "default"


def test_containers_of_a_pod_share_its_gpu_and_the_next_pod_has_all_of_it(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-1")
    request = workloads.gpus("gpu", workloads.is_whole_gpu(device.uuid))
    pods.apply(workloads.template("half", request, config=mps_daemons.config(**mps_daemons.HALF)))
    pods.apply(workloads.template("whole", request))
    both = {"a": ["half"], "b": ["half"]}
    pods.apply(
        mps_daemons.python_pod(workloads.pod("sharing", templates=["half"], containers=both))
    )
    pods.wait_running("sharing")
    (claim,) = workloads.claims_of(pods, "sharing")
    assert mps_daemons.deployments(with_all_gates) == [
        mps_daemons.deployment_of(with_all_gates, claim)
    ]
    for container in both:
        assert workloads.visible_gpus(pods, "sharing", container).uuids == {device.uuid}
        assert (
            mps_daemons.cuda_view(pods, "sharing", container=container)
            == mps_daemons.HALF_OF_AN_H100
        )
    pods.apply(mps_daemons.python_pod(workloads.pod("alone", templates=["whole"])))
    workloads.wait_unschedulable(pods, "alone")
    pods.delete("pod", "sharing")
    pods.wait_running("alone")
    assert mps_daemons.cuda_view(pods, "alone") == A_WHOLE_H100
    mps_daemons.wait_gone(with_all_gates, NODE)


def test_a_mig_device_is_made_shared_by_mps_and_destroyed(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    if with_all_gates.release < api_versions.PARTITIONS_SINCE:
        pods.apply(workloads.template("slice", workloads.mig_devices("mig")))
        pods.apply(workloads.pod("p", templates=["slice"]))
        workloads.wait_unschedulable(pods, "p")
        return
    share_a_mig_device(with_all_gates, pods, with_all_gates.device(NODE, "gpu-2").uuid)


def test_a_pair_computes_on_while_the_plugin_is_restarted(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    pods.apply(QUICKSTART)
    pods.wait_running("mps-a", "mps-b")
    (device,) = with_all_gates.allocated_devices(pods.get("resourceclaim", "shared-by-mps"))
    for name in ("mps-a", "mps-b"):
        mps_daemons.wait_log(pods, name, "computing")
    daemons = mps_daemons.daemon_uids(with_all_gates)
    with_all_gates.restart_plugin(device.node)
    pods.wait_running("mps-a", "mps-b")
    assert mps_daemons.clients(pods, "mps-a") == 2
    assert mps_daemons.daemon_uids(with_all_gates) == daemons
    pods.delete("pod", "mps-a", "mps-b")
    mps_daemons.wait_gone(with_all_gates, device.node)


def test_a_claim_has_a_gpu_in_turns_and_another_one_by_mps(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    of_both = workloads.template(
        "both",
        *(
            workloads.gpus(name, workloads.is_whole_gpu(uuid))
            for name, uuid in (
                ("turns", with_all_gates.device(NODE, "gpu-6").uuid),
                ("pair", with_all_gates.device(NODE, "gpu-7").uuid),
            )
        ),
        config={"turns": LONG_TURNS, "pair": mps_daemons.config(**mps_daemons.HALF)},
    )
    pods.apply(of_both)
    uses = {f"{name}-{side}": [f"both/{name}"] for name in ("turns", "pair") for side in "ab"}
    pods.apply(mps_daemons.python_pod(workloads.pod("p", templates=["both"], containers=uses)))
    pods.wait_running("p")
    for container in uses:
        expected = mps_daemons.HALF_OF_AN_H100 if container.startswith("pair") else A_WHOLE_H100
        assert mps_daemons.cuda_view(pods, "p", container=container) == expected
    pods.delete("pod", "p")
    mps_daemons.wait_gone(with_all_gates, NODE)


def test_with_all_gates_each_gpu_of_a_node_is_shared_in_another_way(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    by_mps, in_turns, divided, alone = (
        with_all_gates.device(NODE, f"gpu-{index}").uuid for index in (1, 2, 3, 4)
    )
    mps_daemons.apply_claim(pods, "shared", by_mps)
    wanted = workloads.gpus("gpu", workloads.is_whole_gpu(in_turns))
    pods.apply(workloads.template("turns", wanted, config=LONG_TURNS))
    pods.apply(workloads.template("alone", workloads.gpus("gpu", workloads.is_whole_gpu(alone))))
    started = {
        "mps": workloads.pod("mps", claims=["shared"]),
        "turns": workloads.pod("turns", templates=["turns"]),
        "alone": workloads.pod("alone", templates=["alone"]),
    }
    if with_all_gates.release >= api_versions.PARTITIONS_SINCE:
        pods.apply(workloads.template("slice", workloads.mig_device_of(divided, THREE_SLICES)))
        started["slice"] = workloads.pod("slice", templates=["slice"])
    for pod in started.values():
        pods.apply(mps_daemons.python_pod(pod))
    pods.wait_running(*started)
    assert mps_daemons.cuda_view(pods, "mps") == mps_daemons.HALF_OF_AN_H100
    assert mps_daemons.cuda_view(pods, "turns") == A_WHOLE_H100
    assert "Long" in with_all_gates.exec_on_node(
        NODE, NVIDIA_SMI, "compute-policy", "-i", in_turns, "--list"
    )
    modes = [
        mps_daemons.compute_mode(with_all_gates, NODE, each) for each in (by_mps, in_turns, alone)
    ]
    assert modes == ["exclusive_process", "default", "default"]
    if "slice" in started:
        assert len(workloads.visible_mig_devices(pods, "slice")) == 1
    pods.delete("pod", *started)
    mps_daemons.wait_gone(with_all_gates, NODE)
    with_all_gates.wait_no_mig_devices(NODE)


def test_a_share_of_a_gpu_is_not_shared_by_mps_and_a_mig_device_beside_it_is(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    mps_daemons.install_all(with_all_gates, *settings, FOUR_SHARES)
    mps_daemons.apply_claim(pods, "shared", with_all_gates.device(NODE, "gpu-1").uuid)
    pods.apply(workloads.pod("p", claims=["shared"]))
    if with_all_gates.release < api_versions.SHARES_SINCE:
        pods.wait_running("p")  # GPUs are whole there
        pods.delete("pod", "p")
        mps_daemons.wait_gone(with_all_gates, NODE)
        mps_daemons.install_all(with_all_gates, *settings)
        return
    pods.wait(lambda: None if pod_prepares.failures(pods, "p") else "none", "a failed prepare")
    assert "MPS is not available for a share of a device" in pod_prepares.failures(pods, "p")[0]
    share_a_mig_device(with_all_gates, pods, with_all_gates.device(NODE, "gpu-2").uuid)
    pods.delete("pod", "p")
    mps_daemons.install_all(with_all_gates, *settings)


@pytest.mark.soak("the same as with all gates, installed once more")
def test_with_its_gate_alone_a_pair_computes_side_by_side(
    cluster: Cluster, idle: Cluster, pods: Kubectl, settings: list[str]
) -> None:
    cluster.install(*settings, MPS_ALONE)
    pods.apply(QUICKSTART)
    pods.wait_running("mps-a", "mps-b")
    (device,) = cluster.allocated_devices(pods.get("resourceclaim", "shared-by-mps"))
    for name in ("mps-a", "mps-b"):
        mps_daemons.wait_log(pods, name, "computing")
    assert mps_daemons.clients(pods, "mps-a") == 2
    pods.delete("pod", "mps-a", "mps-b")
    mps_daemons.wait_gone(cluster, device.node)


def share_a_mig_device(cluster: Cluster, pods: Kubectl, gpu: str) -> None:
    """Share a MIG device that is made for a pod among its containers, and see that it is gone."""
    half = mps_daemons.config("MigDeviceConfig", **mps_daemons.HALF)
    pods.apply(
        workloads.template("half-a-slice", workloads.mig_device_of(gpu, THREE_SLICES), config=half)
    )
    both = {"a": ["half-a-slice"], "b": ["half-a-slice"]}
    pods.apply(
        mps_daemons.python_pod(
            workloads.pod("sharing", templates=["half-a-slice"], containers=both)
        )
    )
    pods.wait_running("sharing")
    (made,) = cluster.mig_list(NODE)
    for container in both:
        assert workloads.visible_mig_devices(pods, "sharing", container) == {made["uuid"]}
        within = CudaView(
            (0, 0), multiprocessors=30, memory_mib=10240, allocated=(mps_daemons.OUT_OF_MEMORY,)
        )
        assert mps_daemons.cuda_view(pods, "sharing", 10241, container=container) == within
    pods.delete("pod", "sharing")
    mps_daemons.wait_gone(cluster, NODE)
    cluster.wait_no_mig_devices(NODE)
