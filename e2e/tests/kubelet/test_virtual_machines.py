# SPDX-License-Identifier: Apache-2.0
"""Claims of GPUs for virtual machines: what their pods get, and that the GPU is one of pods again.

On a lab of its own, whose GPUs can change drivers.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from nvdra_lab import model
from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import GPU_PLUGIN, GPUS_ONLY, Cluster, Device
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.kubelet import pod_resources

from e2e.demo import passthrough_chapter
from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import Screen

E2E = Path(__file__).parents[2]
VIRTUAL_MACHINE = E2E / "cluster/virtual-machine.yaml"
VALUES = E2E / "cluster/passthrough-values.yaml"
NODE = "node-1"
PROFILE = "t4"
IMAGES = ("nvdra-gpu-plugin",)
VFIO = {"deviceClassName": "vfio.gpu.nvidia.com"}
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
TOLD_SINCE = (1, 34)
"""From here on the kubelet tells claims (gate KubeletPodResourcesDynamicResources)."""

LISTED = ("--query-gpu=pci.bus_id", "--format=csv,noheader")


@dataclass(frozen=True)
class Function:
    """How the kernel of the node has a PCI function.

    Attributes:
        driver: The name of its driver; empty for none.
        override: Its `driver_override`, `(null)` for none.
    """

    driver: str
    override: str


@pytest.fixture(scope="module")
def cluster(
    run_lab: Callable[..., AbstractContextManager[Cluster]], pytestconfig: pytest.Config
) -> Iterator[Cluster]:
    """A node with four T4 and the gate PassthroughSupport."""
    name = f"{pytestconfig.getoption('--lab')}-vm"
    flags = ("--passthrough", "--nodes=1")
    with run_lab(name, PROFILE, GPU_PLUGIN, *flags, image_names=IMAGES) as cluster:
        cluster.install(GPUS_ONLY, f"--values={VALUES}")
        yield cluster


def function(cluster: Cluster, device: Device) -> Function:
    """How the node has the GPU of a device."""
    where = f"{model.SYS_ROOT}/bus/pci/devices/{device.attributes[PCI_BUS_ID]}"
    script = f"readlink {where}/driver; cat {where}/driver_override"
    *link, override = cluster.exec_on_node(NODE, "sh", "-c", script).splitlines()
    return Function("".join(link).rpartition("/")[2], override)


def listed_gpus(cluster: Cluster) -> set[str]:
    """The PCI addresses of the GPUs that `nvidia-smi` lists on the node."""
    smi = f"{model.DRIVER_ROOT}/usr/bin/nvidia-smi"
    lines = cluster.exec_on_node(NODE, smi, *LISTED).lower().splitlines()
    return {f"0000:{line.partition(':')[2]}" for line in lines}


def allocated(cluster: Cluster, pods: Kubectl, pod: str) -> list[Device]:
    """The devices of a pod with one claim."""
    (claim,) = workloads.claims_of(pods, pod)
    return cluster.allocated_devices(claim)


def slice_versions(cluster: Cluster) -> dict[str, str]:
    """The resource version of every slice: another one after each write."""
    slices = [each["metadata"] for each in cluster.kubectl.get("resourceslices")]
    return {each["name"]: each["resourceVersion"] for each in slices}


def vfio_nodes(pods: Kubectl, pod: str) -> set[str]:
    """The nodes of VFIO and of the NVIDIA driver in a pod's container."""
    script = "find /dev -path '*vfio*' ! -type d -o -path '*nvidia*' -o -name iommu"
    return set(pods.exec(pod, "sh", "-c", script).split())


def group_node(device: Device) -> str:
    """The node of a device's IOMMU group."""
    return f"/dev/vfio/{device.attributes['iommuGroup']}"


def injected_nodes(cluster: Cluster) -> dict[str, list[list[str]]]:
    """CDI id → the device nodes of each device of that name in the node's specs."""
    script = "for file in /var/run/cdi/*; do echo ---; cat $file; done"
    specs = yaml.safe_load_all(cluster.exec_on_node(NODE, "sh", "-c", script))
    found: dict[str, list[list[str]]] = {}
    for spec in filter(None, specs):  # a file may begin with the mark between documents
        for device in spec["devices"]:
            nodes = device["containerEdits"].get("deviceNodes", [])
            where = found.setdefault(f"{spec['kind']}={device['name']}", [])
            where.append([node["path"] for node in nodes])
    return found


def cdi_ids(cluster: Cluster, pods: Kubectl, pod: str) -> dict[str, list[str]]:
    """What the kubelet says of a pod's devices: name → CDI ids."""
    kubelet = cluster.lab.folder / f"machines/{NODE}/var-lib/kubelet"
    return pod_resources.cdi_ids(kubelet / "pod-resources/kubelet.sock", pods.namespace, pod)


@pytest.mark.usefixtures("idle")
def test_a_virtual_machine_holds_its_gpu_which_afterwards_is_one_for_pods(
    cluster: Cluster, pods: Kubectl
) -> None:
    published = slice_versions(cluster)
    pods.apply(VIRTUAL_MACHINE)
    pods.wait_running("virtual-machine")
    (device,) = allocated(cluster, pods, "virtual-machine")
    pci, node = device.attributes[PCI_BUS_ID], group_node(device)
    before = listed_gpus(cluster)
    assert function(cluster, device) == Function("vfio-pci", "vfio-pci")
    assert len(before) == 3
    assert pci not in before
    assert vfio_nodes(pods, "virtual-machine") == {"/dev/vfio/vfio", node}
    pods.wait(lambda: None if pods.logs("virtual-machine") else "nothing", "what its process says")
    assert json.loads(pods.logs("virtual-machine"))["failed"] is None

    pods.delete("pod", "virtual-machine")
    pods.wait(
        lambda: None if (now := function(cluster, device)).driver == "nvidia" else str(now),
        "the GPU to be on its driver again",
    )
    assert function(cluster, device) == Function("nvidia", "(null)")
    assert listed_gpus(cluster) == before | {pci}
    pods.apply(workloads.template("same", workloads.gpus("gpu", same_gpu(device))))
    pods.apply(workloads.pod("after", templates=["same"]))
    pods.wait_running("after")
    assert workloads.visible_gpus(pods, "after").uuids == {device.attributes["parentUUID"]}
    pods.delete("pod", "after")
    if cluster.release >= api_versions.PARTITIONS_SINCE:
        assert slice_versions(cluster) == published, "counters keep the two apart"


def same_gpu(device: Device) -> str:
    """A CEL expression that the GPU of a vfio device meets while it is offered to pods."""
    return workloads.is_whole_gpu(str(device.attributes["parentUUID"]))


@pytest.mark.usefixtures("idle")
def test_the_kubelet_tells_kata_an_id_for_each_gpu_that_leads_to_one_node(
    cluster: Cluster, pods: Kubectl
) -> None:
    wanted = {"name": "gpus", "exactly": {**VFIO, "count": 2}}
    pods.apply(workloads.template("two", wanted))
    pods.apply(workloads.pod("sandbox", templates=["two"]))
    pods.wait_running("sandbox")
    devices = allocated(cluster, pods, "sandbox")
    nodes = {device.name: group_node(device) for device in devices}
    assert vfio_nodes(pods, "sandbox") == set(nodes.values())
    assert "NVIDIA_VISIBLE_DEVICES=void" in pods.exec("sandbox", "env").splitlines()
    if cluster.release >= TOLD_SINCE:
        assert_told(cluster, cdi_ids(cluster, pods, "sandbox"), nodes)
    (claim,) = workloads.claims_of(pods, "sandbox")
    uid = claim["metadata"]["uid"]
    assert any(uid in each for each in injected_nodes(cluster))
    pods.delete("pod", "sandbox")
    cluster.kubectl.wait(
        lambda: "it is there" if any(uid in each for each in injected_nodes(cluster)) else None,
        "the CDI spec of the claim to be gone",
    )


def assert_told(cluster: Cluster, told: dict[str, list[str]], nodes: dict[str, str]) -> None:
    """Each device has a CDI id of its own, which leads to its one node.

    With the id of a device the kubelet lists those of the claim's devices before it, as of
    Kubernetes 1.36.3 (GetDynamicResources in pkg/kubelet/cm/container_manager_linux.go).

    Args:
        cluster: Where the specs are.
        told: Device → the ids that the kubelet lists.
        nodes: Device → its node.
    """
    specs = injected_nodes(cluster)
    assert told.keys() == nodes.keys()
    assert len({each for ids in told.values() for each in ids}) == len(nodes)
    assert {name: specs[ids[-1]] for name, ids in told.items()} == {
        name: [[node]] for name, node in nodes.items()
    }


@pytest.mark.usefixtures("idle")
def test_the_demo_shows_who_has_the_gpu_of_a_virtual_machine(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.kubectl.run("create", "namespace", NAMESPACE)
    try:
        passthrough_chapter.run(Screen(), cluster)
    finally:
        cluster.kubectl.delete("namespace", NAMESPACE)
    told = capsys.readouterr().out
    during, _, after = told.partition("delete pod virtual-machine")
    assert "4 are offered, on node-1" in during
    assert "virtual-machine: Running" in during
    assert ("drivers/vfio-pci" in during, "drivers/vfio-pci" in after) == (True, False)
    assert "drivers/nvidia" in after
    assert (during.count("UUID: GPU-"), after.count("UUID: GPU-")) == (3, 4)
