# SPDX-License-Identifier: Apache-2.0
"""The chapter about a GPU that goes to a virtual machine and comes back."""

from nvdra_lab import model
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster, Device

from e2e.demo import next_steps, node_view, quickstarts
from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import Screen

PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
NODES = ("ls", "/dev/vfio")


def run(screen: Screen, cluster: Cluster) -> None:
    """Show who has the GPU while the pod runs and after it; skipped where none is offered."""
    screen.chapter(
        "A GPU for a virtual machine",
        "A guest brings its own NVIDIA driver. So the node's lets go of the GPU before the pod "
        "starts, a vfio driver takes it, and the pod gets the nodes by which QEMU opens it.",
    )
    offered = [each for each in cluster.devices() if each.attributes["type"] == "vfio"]
    if not offered:
        screen.note(
            "None is offered here: that takes a lab whose GPUs can change drivers, which needs "
            "FUSE; make cluster-down, then make demo"
        )
        return
    nodes = sorted({each.node for each in offered})
    screen.prose(f"{len(offered)} are offered, on {' and '.join(nodes)}, beside the same GPUs.")
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    quickstart = quickstarts.start(screen, pods, quickstarts.VIRTUAL_MACHINE)
    (name,) = quickstart.pods
    (claim,) = workloads.claims_of(pods, name)
    (device,) = cluster.allocated_devices(claim)
    group = device.attributes["iommuGroup"]
    screen.prose(f"{device.node}: {device.name}, IOMMU group {group}", indent=6)
    screen.commands([f"kubectl -n {NAMESPACE} exec {name} -- {' '.join(NODES)}"])
    screen.quote(pods.exec(name, *NODES))
    _show_driver(screen, cluster, device)
    node_view.show(screen, cluster, device.node, "-L")
    quickstarts.delete_pods(screen, pods, quickstart)
    with screen.step(f"the NVIDIA driver has the GPU of {device.node} again"):
        cluster.kubectl.wait(
            lambda: None if (now := _driver(cluster, device)) == "nvidia" else now or "none",
            "the GPU to be on its driver",
        )
    _show_driver(screen, cluster, device)
    node_view.show(screen, cluster, device.node, "-L")


def _show_driver(screen: Screen, cluster: Cluster, device: Device) -> None:
    """The driver of the GPU, as sysfs of the node has it."""
    flag = next_steps.name_flag(cluster.lab.name)
    screen.commands([f"lab exec{flag} {device.node} -- readlink {_link(device)}"])
    screen.quote(cluster.exec_on_node(device.node, "readlink", _link(device)))


def _driver(cluster: Cluster, device: Device) -> str:
    """The name of that driver; empty while there is none."""
    script = f"readlink {_link(device)} || true"
    return cluster.exec_on_node(device.node, "sh", "-c", script).strip().rpartition("/")[2]


def _link(device: Device) -> str:
    return f"{model.SYS_ROOT}/bus/pci/devices/{device.attributes[PCI_BUS_ID]}/driver"
