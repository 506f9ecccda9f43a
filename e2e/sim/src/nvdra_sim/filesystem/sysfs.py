# SPDX-License-Identifier: Apache-2.0
"""The PCI devices of the node in sysfs (docs/reference/nvml-simulator.md §14.5)."""

from __future__ import annotations

import os
import struct

from nvdra_sim.description import Gpu, NodeDescription
from nvdra_sim.filesystem.procfs import interrupt_number
from nvdra_sim.filesystem.trees import Directory, Entry, File, Link, Tree, text

NVIDIA = 0x10DE
INTEL = 0x8086
MELLANOX = 0x15B3
ROOT_PORT = 0x352A
NVLINK_MANAGER = 0x1021
CLASS_3D = 0x030200
CLASS_BRIDGE = 0x060400
CLASS_INFINIBAND = 0x020700
REVISION = 0xA1
RESOURCES = 13  # lines of a PCI function's `resource` file
MEMORY_FLAGS = 0x14220C  # 64-bit, prefetchable memory
MIB = 1 << 20
CPUS_PER_NUMA_NODE = 56


def tree(node: NodeDescription) -> Tree:
    """All files below the sys root."""
    entries: dict[str, Entry] = {
        "bus/pci/devices": Directory(),
        "bus/pci/drivers_probe": File(b"", 0o200),
        "module/firmware_class/parameters/path": text(""),
        "module/vfio_pci": Directory(),
    }
    for driver in ("nvidia", "vfio-pci"):
        for control in ("bind", "unbind", "new_id"):
            entries[f"bus/pci/drivers/{driver}/{control}"] = File(b"", 0o200)
    if node.driver.module_loaded:
        entries["module/nvidia/version"] = text(node.driver.version, 0o444)
        entries["module/nvidia_modeset"] = Directory()
    if node.driver.uvm_loaded:
        entries["module/nvidia_uvm"] = Directory()
    if node.iommu.enabled:
        entries["kernel/iommu_groups"] = Directory()
    entries |= _numa_nodes(node)
    for position, gpu in enumerate(node.gpus):
        entries |= _bridge(gpu, position)
        entries |= _gpu(gpu, position)
    for number in range(node.nvlink_managers):
        entries |= _nvlink_manager(number)
    return entries


def gpu_tree(node: NodeDescription, gpu: Gpu) -> Tree:
    """The files of one GPU, which disappear when it is unplugged."""
    return _gpu(gpu, node.gpus.index(gpu))


def drm_card(gpu: Gpu) -> int:
    """The number of `/dev/dri/card<N>`. card0 is the server's management display."""
    return gpu.index + 1


def drm_render(gpu: Gpu) -> int:
    """The number of `/dev/dri/renderD<N>`."""
    return gpu.index + 128


def has_drm(gpu: Gpu) -> bool:
    """Whether the GPU has DRM devices. Only the NVIDIA driver creates them."""
    return gpu.bound_driver == "nvidia"


def vfio_device(gpu: Gpu) -> int | None:
    """The N of `/dev/vfio/devices/vfio<N>`, for a GPU that is bound to vfio-pci."""
    return gpu.index if gpu.bound_driver == "vfio-pci" else None


def _port(gpu: Gpu, position: int) -> str:
    """Address of the root port above a GPU; ports of one root differ in their device number."""
    root = gpu.pcie_root.removeprefix("pci")
    return f"{root}:{position % 31 + 1:02x}.0"


def _numa_nodes(node: NodeDescription) -> dict[str, Entry]:
    numbers = sorted({0} | {gpu.numa_node for gpu in node.gpus if gpu.numa_node >= 0})
    entries: dict[str, Entry] = {
        f"devices/system/node/node{number}/cpulist": text(_cpus(number), 0o444)
        for number in numbers
    }
    memory = {gpu.memory_numa_node for gpu in node.gpus if gpu.memory_numa_node is not None}
    for number in sorted(memory - set(numbers)):
        entries[f"devices/system/node/node{number}/cpulist"] = text("", 0o444)
    online = ",".join(str(number) for number in sorted(memory | set(numbers)))
    entries["devices/system/node/online"] = text(online, 0o444)
    return entries


def _cpus(numa_node: int) -> str:
    if numa_node < 0:
        return f"0-{2 * CPUS_PER_NUMA_NODE - 1}"
    first = numa_node * CPUS_PER_NUMA_NODE
    return f"{first}-{first + CPUS_PER_NUMA_NODE - 1}"


def _bridge(gpu: Gpu, position: int) -> dict[str, Entry]:
    port = _port(gpu, position)
    directory = f"devices/{gpu.pcie_root}/{port}"
    facts = {
        "vendor": f"0x{INTEL:04x}",
        "device": f"0x{ROOT_PORT:04x}",
        "class": f"0x{CLASS_BRIDGE:06x}",
        "numa_node": str(gpu.numa_node),
    }
    entries: dict[str, Entry] = {
        f"{directory}/{name}": text(value, 0o444) for name, value in facts.items()
    }
    entries[f"{directory}/resource"] = _resource({})
    entries[f"bus/pci/devices/{port}"] = Link(f"../../../{directory}")
    return entries


def _gpu(gpu: Gpu, position: int) -> dict[str, Entry]:
    directory = f"devices/{gpu.pcie_root}/{_port(gpu, position)}/{gpu.bus_id}"
    entries: dict[str, Entry] = {
        f"{directory}/{name}": text(value, 0o444) for name, value in _facts(gpu).items()
    }
    bars = {0: 16 * MIB, 2: gpu.bar1_mib * MIB, 4: 32 * MIB}
    entries[f"{directory}/config"] = File(_configuration(gpu), 0o644)
    entries[f"{directory}/resource"] = _resource(bars)
    entries[f"{directory}/driver_override"] = text("(null)")
    entries[f"{directory}/enable"] = text("1" if gpu.bound_driver else "0")
    entries[f"{directory}/subsystem"] = Link(_from(directory, "bus/pci"))
    entries[f"bus/pci/devices/{gpu.bus_id}"] = Link(f"../../../{directory}")
    if gpu.bound_driver is not None:
        driver = f"bus/pci/drivers/{gpu.bound_driver}"
        entries[f"{directory}/driver"] = Link(_from(directory, driver))
        entries[f"{driver}/{gpu.bus_id}"] = Link(_from(driver, directory))
    if gpu.iommu_group is not None:
        group = f"kernel/iommu_groups/{gpu.iommu_group}"
        entries[f"{directory}/iommu_group"] = Link(_from(directory, group))
        entries[f"{group}/devices/{gpu.bus_id}"] = Link(_from(f"{group}/devices", directory))
    if has_drm(gpu):
        entries[f"{directory}/drm/card{drm_card(gpu)}"] = Directory()
        entries[f"{directory}/drm/renderD{drm_render(gpu)}"] = Directory()
    if (number := vfio_device(gpu)) is not None:
        entries[f"{directory}/vfio-dev/vfio{number}"] = Directory()
    return entries


def _facts(gpu: Gpu) -> dict[str, str]:
    """The one-line files of a GPU."""
    modalias = (
        f"pci:v{NVIDIA:08X}d{gpu.pci_device:08X}sv{NVIDIA:08X}sd{gpu.pci_subsystem:08X}bc03sc02i00"
    )
    driver = [f"DRIVER={gpu.bound_driver}"] if gpu.bound_driver else []
    uevent = [
        *driver,
        "PCI_CLASS=30200",
        f"PCI_ID={NVIDIA:04X}:{gpu.pci_device:04X}",
        f"PCI_SUBSYS_ID={NVIDIA:04X}:{gpu.pci_subsystem:04X}",
        f"PCI_SLOT_NAME={gpu.bus_id}",
        f"MODALIAS={modalias}",
    ]
    return {
        "vendor": f"0x{NVIDIA:04x}",
        "device": f"0x{gpu.pci_device:04x}",
        "subsystem_vendor": f"0x{NVIDIA:04x}",
        "subsystem_device": f"0x{gpu.pci_subsystem:04x}",
        "class": f"0x{CLASS_3D:06x}",
        "revision": f"0x{REVISION:02x}",
        "numa_node": str(gpu.numa_node),
        "local_cpulist": _cpus(gpu.numa_node),
        "irq": str(interrupt_number(gpu)),
        "modalias": modalias,
        "uevent": "\n".join(uevent),
    }


def _nvlink_manager(number: int) -> dict[str, Entry]:
    """An NVLink 5 switch's management function: its vital product data carry the mark SW_MNG."""
    address = f"0000:05:00.{number}"
    directory = f"devices/pci0000:04/0000:04:01.0/{address}"
    facts = {
        "vendor": f"0x{MELLANOX:04x}",
        "device": f"0x{NVLINK_MANAGER:04x}",
        "class": f"0x{CLASS_INFINIBAND:06x}",
        "numa_node": "0",
    }
    adapter = f"{directory}/infiniband/mlx5_{number}"
    return {
        **{f"{directory}/{name}": text(value, 0o444) for name, value in facts.items()},
        f"{directory}/resource": _resource({}),
        f"{directory}/vpd": File(b"\x82\x06\x00SW_MNG\x78", 0o600),
        f"{adapter}/device": Link(f"../../../{address}"),
        f"class/infiniband/mlx5_{number}": Link(f"../../{adapter}"),
        f"bus/pci/devices/{address}": Link(f"../../../{directory}"),
    }


def _resource(bars: dict[int, int]) -> File:
    """Start, end and flags of each region, each at a multiple of its size behind the one before."""
    lines, free = [], 0x2000_0000_0000
    for index in range(RESOURCES):
        size = bars.get(index, 0)
        if size == 0:
            lines.append("0x0000000000000000 0x0000000000000000 0x0000000000000000")
            continue
        start = -(-free // size) * size
        free = start + size
        lines.append(f"0x{start:016x} 0x{free - 1:016x} 0x{MEMORY_FLAGS:016x}")
    return text("\n".join(lines), 0o444)


def _configuration(gpu: Gpu) -> bytes:
    """The standard header of PCI configuration space, little endian, filled up to 256 bytes."""
    command, status, programming_interface = 0x0406, 0x0010, 0
    head = struct.pack(
        "<HHHHBBBB", NVIDIA, gpu.pci_device, command, status, REVISION, programming_interface, 2, 3
    )
    subsystem = struct.pack("<HH", NVIDIA, gpu.pci_subsystem)
    return (head.ljust(0x2C, b"\0") + subsystem).ljust(256, b"\0")


def _from(directory: str, target: str) -> str:
    return os.path.relpath(target, directory)
