# SPDX-License-Identifier: Apache-2.0
"""The device nodes of a simulated node: real nodes, or a table if mknod is not allowed.

A node whose major no kernel module has registered cannot be opened, but it can be listed and
injected, and `stat` works. Source: docs/reference/nvml-simulator.md §14.3.
"""

from __future__ import annotations

import json

from nvdra_sim.description import MODESET_MINOR, NVIDIA_MAJOR, DeviceNumber, Gpu, NodeDescription
from nvdra_sim.filesystem import procfs, sysfs
from nvdra_sim.filesystem.trees import Entry, File, Link, Node, Tree

TABLE = "devices.json"
DRM_MAJOR = 226
MISC_MAJOR = 10
VFIO_MINOR = 196
IOMMU_MINOR = 127
VFIO_GROUP_MAJOR = 511
VFIO_DEVICE_MAJOR = 510
VIDEO_GID, RENDER_GID = 44, 110


def tree(node: NodeDescription) -> Tree:
    """All files below the dev root: nodes and links, or one table that lists them."""
    entries = _entries(node)
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


def _entries(node: NodeDescription) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    if node.driver.module_loaded:
        entries |= _control(node)
        for gpu in node.gpus:
            if gpu.bound_driver == "nvidia":
                entries |= _gpu(gpu) | _instances(gpu, node.majors.nvidia_caps)
    if node.iommu.enabled:
        entries |= _passthrough(node)
    return entries


def _control(node: NodeDescription) -> dict[str, Entry]:
    uvm, caps = node.majors.nvidia_uvm, node.majors.nvidia_caps
    entries: dict[str, Entry] = {
        "nvidiactl": Node(node.control_node),
        "nvidia-modeset": _node(NVIDIA_MAJOR, MODESET_MINOR),
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


def _gpu(gpu: Gpu) -> dict[str, Entry]:
    card, render = f"card{sysfs.drm_card(gpu)}", f"renderD{sysfs.drm_render(gpu)}"
    return {
        f"nvidia{gpu.minor}": Node(gpu.node),
        f"dri/{card}": _node(DRM_MAJOR, sysfs.drm_card(gpu), 0o660, VIDEO_GID),
        f"dri/{render}": _node(DRM_MAJOR, sysfs.drm_render(gpu), 0o660, RENDER_GID),
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


def _passthrough(node: NodeDescription) -> dict[str, Entry]:
    entries: dict[str, Entry] = {"vfio/vfio": _node(MISC_MAJOR, VFIO_MINOR)}
    if node.iommu.iommufd:
        entries["iommu"] = _node(MISC_MAJOR, IOMMU_MINOR, 0o660)
    for gpu in node.gpus:
        number = sysfs.vfio_device(gpu)
        if number is None or gpu.iommu_group is None:
            continue
        entries[f"vfio/{gpu.iommu_group}"] = _node(VFIO_GROUP_MAJOR, number, 0o600)
        if node.iommu.iommufd:
            entries[f"vfio/devices/vfio{number}"] = _node(VFIO_DEVICE_MAJOR, number, 0o600)
    return entries


def _node(major: int, minor: int, mode: int = 0o666, gid: int = 0) -> Node:
    return Node(DeviceNumber(major=major, minor=minor), mode, gid=gid)
