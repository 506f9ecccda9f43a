# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of a node, as they are in their slots: GPUs, their companions, and ports.

Which driver has a function at the moment is in `bus`.

Sources: Linux, drivers/pci/quirks.c, `quirk_gpu_hda`, `quirk_gpu_usb` and
`quirk_gpu_usb_typec_ucsi`, for the functions beside a GPU, which the kernel links to it; the PCI ID
database for their numbers, which are those of a Turing board.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nvdra_sim.description import Companion, Gpu, NodeDescription

NVIDIA = 0x10DE
INTEL = 0x8086
MELLANOX = 0x15B3
ROOT_PORT = 0x352A
SWITCH_PORT = 0x8747  # of a PLX switch
PLX = 0x10B5
NVLINK_MANAGER = 0x1021
CLASS_VGA = 0x030000
CLASS_3D = 0x030200
CLASS_BRIDGE = 0x060400
CLASS_INFINIBAND = 0x020700
REVISION = 0xA1
FIRST_SWITCH_GROUP = 40  # of IOMMU groups, for ports of switches that isolate
FIRST_MANAGER_GROUP = 80
SRIOV_ARCHITECTURES = 7  # from Ampere on
MAX_VFS = 16
LANES = 16


@dataclass(frozen=True)
class PciFunction:
    """A function in its slot.

    Attributes:
        address: As in sysfs, with the function: `0000:53:00.1`.
        directory: Its directory, relative to the sys root.
        group: Its IOMMU group; None without an IOMMU, or without a group in it.
        native: The driver whose id table has it; None: no driver of this kernel.
        driver: The driver at boot.
        gpu: The GPU that it is; None for all others.
        supplier: The address of the GPU that it is a companion of.
        virtual_functions: How many it can have at most.
        pcie_generation: That of its link.
        lanes: Those of its link.
        can_lose_power: Whether the board can cut it off (ACPI), so that it sleeps in D3cold.
    """

    address: str
    directory: str
    vendor: int
    device: int
    subsystem_vendor: int
    subsystem_device: int
    class_code: int
    numa_node: int
    group: int | None
    native: str | None
    driver: str | None
    gpu: Gpu | None = None
    supplier: str | None = None
    virtual_functions: int = 0
    pcie_generation: int = 5
    lanes: int = LANES
    can_lose_power: bool = False

    @property
    def is_bridge(self) -> bool:
        """Whether it is a port of PCIe, which never keeps a group from being viable."""
        return self.class_code == CLASS_BRIDGE


@dataclass(frozen=True)
class _CompanionKind:
    function: int
    device: int
    class_code: int
    native: str | None


COMPANIONS: dict[Companion, _CompanionKind] = {
    "audio": _CompanionKind(1, 0x10F8, 0x040300, "snd_hda_intel"),
    "usb": _CompanionKind(2, 0x1AD8, 0x0C0330, "xhci_hcd"),
    "ucsi": _CompanionKind(3, 0x1AD9, 0x0C8000, None),
}


def of(node: NodeDescription) -> tuple[PciFunction, ...]:
    """All functions of the node, in the order of their addresses."""
    found: dict[str, PciFunction] = {}
    for gpu in node.gpus:
        for port in _ports(gpu, node):
            found.setdefault(port.address, port)
        found |= {function.address: function for function in _board(gpu, node)}
    managers = (_nvlink_manager(number, node) for number in range(node.nvlink_managers))
    found |= {function.address: function for function in managers}
    return tuple(found[address] for address in sorted(found))


def _ports(gpu: Gpu, node: NodeDescription) -> Iterator[PciFunction]:
    directory = f"devices/{gpu.pcie_root}"
    for depth, address in enumerate(gpu.bridges):
        directory = f"{directory}/{address}"
        vendor, device = (INTEL, ROOT_PORT) if depth == 0 else (PLX, SWITCH_PORT)
        yield PciFunction(
            address=address,
            directory=directory,
            vendor=vendor,
            device=device,
            subsystem_vendor=vendor,
            subsystem_device=device,
            class_code=CLASS_BRIDGE,
            numa_node=gpu.numa_node,
            group=_port_group(gpu, depth, node),
            native="pcieport",
            driver="pcieport",
            pcie_generation=gpu.pcie_generation,
        )


def _port_group(gpu: Gpu, depth: int, node: NodeDescription) -> int | None:
    """A port that isolates has a group of its own; without ACS, the group of what is below."""
    if not node.iommu.enabled:
        return None
    if depth == 0:
        return min(other.index for other in node.gpus if other.bridges[0] == gpu.bridges[0])
    if not node.iommu.acs:
        return gpu.iommu_group
    switches = sorted({port for other in node.gpus for port in other.bridges[1:]})
    return FIRST_SWITCH_GROUP + switches.index(gpu.bridges[depth])


def _board(gpu: Gpu, node: NodeDescription) -> Iterator[PciFunction]:
    above = f"devices/{'/'.join((gpu.pcie_root, *gpu.bridges))}"
    has_display = "audio" in gpu.companions
    yield PciFunction(
        address=gpu.bus_id,
        directory=f"{above}/{gpu.bus_id}",
        vendor=NVIDIA,
        device=gpu.pci_device,
        subsystem_vendor=NVIDIA,
        subsystem_device=gpu.pci_subsystem,
        class_code=CLASS_VGA if has_display else CLASS_3D,
        numa_node=gpu.numa_node,
        group=gpu.iommu_group,
        native="nvidia",
        driver=gpu.bound_driver,
        gpu=gpu,
        virtual_functions=MAX_VFS if gpu.architecture >= SRIOV_ARCHITECTURES else 0,
        pcie_generation=gpu.pcie_generation,
        can_lose_power=node.vfio.d3cold,
    )
    for name in gpu.companions:
        kind = COMPANIONS[name]
        address = f"{gpu.bus_id[:-1]}{kind.function}"
        passed = gpu.bound_driver not in ("nvidia", None)
        yield PciFunction(
            address=address,
            directory=f"{above}/{address}",
            vendor=NVIDIA,
            device=kind.device,
            subsystem_vendor=NVIDIA,
            subsystem_device=gpu.pci_subsystem,
            class_code=kind.class_code,
            numa_node=gpu.numa_node,
            group=gpu.iommu_group,
            native=kind.native,
            driver="vfio-pci" if passed else kind.native,
            supplier=gpu.bus_id,
            pcie_generation=gpu.pcie_generation,
            can_lose_power=node.vfio.d3cold,
        )


def _nvlink_manager(number: int, node: NodeDescription) -> PciFunction:
    """An NVLink 5 switch's management function."""
    address = f"0000:05:00.{number}"
    return PciFunction(
        address=address,
        directory=f"devices/pci0000:04/0000:04:01.0/{address}",
        vendor=MELLANOX,
        device=NVLINK_MANAGER,
        subsystem_vendor=MELLANOX,
        subsystem_device=NVLINK_MANAGER,
        class_code=CLASS_INFINIBAND,
        numa_node=0,
        group=FIRST_MANAGER_GROUP + number if node.iommu.enabled else None,
        native="mlx5_core",
        driver="mlx5_core",
    )
