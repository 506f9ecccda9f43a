# SPDX-License-Identifier: Apache-2.0
"""The device nodes of a simulated node: real nodes, or a table if mknod is not allowed.

A node whose major no kernel module has registered cannot be opened for reading, but it can be
opened with `O_PATH`, listed and injected, and `stat` works.
Source: docs/reference/nvml-simulator.md §14.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from nvdra_sim.description import MODESET_MINOR, DeviceNumber, Gpu, NodeDescription
from nvdra_sim.filesystem import procfs, sysfs
from nvdra_sim.filesystem.trees import Entry, File, Link, Node, Tree
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.pci.bus import Bus, Phase

TABLE = "devices.json"
MISC_MAJOR = 10
VFIO_MINOR = 196
IOMMU_MINOR = 127
VIDEO_GID, RENDER_GID = 44, 110


def tree(
    node: NodeDescription, bus: Bus | None = None, minors: Mapping[int, int] | None = None
) -> Tree:
    """All files below the dev root: nodes and links, or one table that lists them.

    Args:
        node: The node.
        bus: Its PCI bus; by default, as after a boot.
        minors: The index of each GPU, with the minor number that it has while nvidia has it.
    """
    now = pci_bus.at_boot(node) if bus is None else bus
    numbers = {gpu.index: gpu.minor for gpu in node.gpus} if minors is None else minors
    entries = _entries(node, now) | bus_tree(now, numbers)
    if node.render.nodes != "table":
        return entries
    rows = {
        f"/dev/{path}": _row(entry) for path, entry in entries.items() if isinstance(entry, Node)
    }
    table = json.dumps(rows, indent=2, sort_keys=True) + "\n"
    return {TABLE: File(table.encode())}


def _row(node: Node) -> dict[str, str | int]:
    return {
        "type": "c",
        "major": node.device.major,
        "minor": node.device.minor,
        "mode": node.mode,
        "uid": node.uid,
        "gid": node.gid,
    }


def _entries(node: NodeDescription, bus: Bus) -> dict[str, Entry]:
    """The nodes of the driver as a whole, and of the MIG instances that exist from the start."""
    if not bus.has_nvidia:
        return {}
    entries = _control(node)
    for gpu in node.gpus:
        if gpu.bound_driver == pci_bus.NVIDIA_DRIVER:
            entries |= _instances(gpu, node.majors.nvidia_caps)
    return entries


def bus_tree(bus: Bus, minors: Mapping[int, int]) -> dict[str, Entry]:
    """The nodes that come and go with drivers: of GPUs, of vfio.

    Args:
        bus: The bus.
        minors: The index of each GPU, with the minor number that it has while nvidia has it.
    """
    entries: dict[str, Entry] = {}
    for gpu in bus.node.gpus:
        state = bus.states[gpu.bus_id]
        if state.driver != pci_bus.NVIDIA_DRIVER:
            continue
        if state.phase in (Phase.BOUND, Phase.UNBINDING):
            minor = minors[gpu.index]
            entries[f"nvidia{minor}"] = Node(gpu_number(bus.node, gpu, minor))
        if state.phase is Phase.BOUND:
            entries |= _drm(gpu, bus.node.majors.drm)
    return entries | _passthrough(bus)


def gpu_number(node: NodeDescription, gpu: Gpu, minor: int) -> DeviceNumber:
    """The number of a GPU's node; a stand-in that can be opened is the same for all."""
    if node.render.nodes == "openable":
        return gpu.node
    return DeviceNumber(major=node.majors.nvidia, minor=minor)


def _control(node: NodeDescription) -> dict[str, Entry]:
    uvm, caps = node.majors.nvidia_uvm, node.majors.nvidia_caps
    entries: dict[str, Entry] = {
        "nvidiactl": Node(node.control_node),
        "nvidia-modeset": _node(node.majors.nvidia, MODESET_MINOR),
        f"nvidia-caps/nvidia-cap{procfs.CONFIG_CAP}": _node(caps, procfs.CONFIG_CAP, 0o400),
        f"nvidia-caps/nvidia-cap{procfs.MONITOR_CAP}": _node(caps, procfs.MONITOR_CAP, 0o444),
    }
    if node.driver.uvm_loaded:
        entries |= {"nvidia-uvm": _node(uvm, 0), "nvidia-uvm-tools": _node(uvm, 1)}
    if any(gpu.fabric.cluster_uuid.int for gpu in node.gpus):
        cap = procfs.FABRIC_IMEX_CAP
        entries[f"nvidia-caps/nvidia-cap{cap}"] = _node(caps, cap, 0o400)
    channels = node.majors.nvidia_caps_imex_channels
    for number in range(node.imex.channel_nodes):
        entries[f"nvidia-caps-imex-channels/channel{number}"] = _node(channels, number)
    return entries


def _drm(gpu: Gpu, major: int) -> dict[str, Entry]:
    card, render = f"card{sysfs.drm_card(gpu)}", f"renderD{sysfs.drm_render(gpu)}"
    return {
        f"dri/{card}": _node(major, sysfs.drm_card(gpu), 0o660, VIDEO_GID),
        f"dri/{render}": _node(major, sysfs.drm_render(gpu), 0o660, RENDER_GID),
        f"dri/by-path/pci-{gpu.bus_id}-card": Link(f"../{card}"),
        f"dri/by-path/pci-{gpu.bus_id}-render": Link(f"../{render}"),
    }


def _instances(gpu: Gpu, major: int) -> dict[str, Entry]:
    """The capability nodes of MIG instances, as `nvidia-modprobe` creates them."""
    caps: list[int] = []
    for instance in gpu.mig.instances if gpu.mig else ():
        cap = procfs.gpu_instance_cap(gpu.minor, instance.id)
        caps += [cap, *(cap + 1 + compute.id for compute in instance.compute)]
    return {f"nvidia-caps/nvidia-cap{cap}": _node(major, cap, 0o444) for cap in caps}


def _passthrough(bus: Bus) -> dict[str, Entry]:
    """The minor of a group's node is its number *(choice)*; that of a device is its vfio number."""
    entries: dict[str, Entry] = {}
    majors, iommu = bus.node.majors, bus.node.iommu
    if "vfio" in bus.modules:
        entries["vfio/vfio"] = _node(MISC_MAJOR, VFIO_MINOR)
    if "iommufd" in bus.modules:
        entries["iommu"] = _node(MISC_MAJOR, IOMMU_MINOR, 0o660)
    for group in pci_bus.groups_of_vfio(bus):
        entries[f"vfio/{group}"] = _node(majors.vfio, group, 0o600)
    for state in bus.states.values():
        if iommu.cdev and state.vfio_number is not None and state.phase is Phase.BOUND:
            node = _node(majors.vfio_devices, state.vfio_number, 0o600)
            entries[f"vfio/devices/vfio{state.vfio_number}"] = node
    return entries


def _node(major: int, minor: int, mode: int = 0o666, gid: int = 0) -> Node:
    return Node(DeviceNumber(major=major, minor=minor), mode, gid=gid)
