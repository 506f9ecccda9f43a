# SPDX-License-Identifier: Apache-2.0
"""GPUs as vfio devices: what a virtual machine gets as a whole, whichever driver has it now.

Values and names only. Which GPUs are offered in this form is in `gpu_forms`.

Source: docs/reference/gpu-devices.md, "VFIO devices".
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nvdra_api.ids import DeviceName, GpuUUID, PciAddress, VfioUUID

from nvdra_gpu_plugin.devices import device_names


@dataclass(frozen=True, slots=True)
class VfioDevice:
    """A GPU as a device that can be passed to a virtual machine, as sysfs describes it.

    No attribute depends on the driver that has the GPU now: what is published stays the same while
    a claim is prepared.

    Attributes:
        index: The number in its name, from `indexes`.
        pci: Its PCI address.
        vendor_id: PCI vendor, 0x10de.
        device_id: PCI device, such as 0x2330.
        product_name: Its name in the PCI id database, not the one of NVML.
        memory_bytes: What a guest maps of it: its 64-bit BARs, rounded up to a power of two.
        iommu_group: The group that a virtual machine gets with it; None if it is in none, so that
            it is not offered.
        is_isolated: Whether its group has nothing else but functions of its own board and bridges.
        has_iommufd: Whether the node has `/dev/iommu`.
        module: The kernel module of its vfio driver, such as `vfio_pci`; empty if there is none, so
            that it is not offered.
        numa_node: None if the kernel knows none.
        pcie_root: `pci<domain>:<bus>`; None if the GPU is not below a PCI host bridge.
        parent_uuid: The UUID that NVML reports of the GPU; None if the NVIDIA driver has not had it
            as far as is remembered.
        parent_product_name: The name that NVML reports; None as the UUID.

    Source: docs/reference/gpu-devices.md, "Fields of a VFIO device".
    """

    index: int
    pci: PciAddress
    vendor_id: int
    device_id: int
    product_name: str
    memory_bytes: int
    iommu_group: int | None
    is_isolated: bool
    has_iommufd: bool
    module: str = ""
    numa_node: int | None = None
    pcie_root: str | None = None
    parent_uuid: GpuUUID | None = None
    parent_product_name: str | None = None

    @property
    def kind(self) -> str:
        """The kind of device: `vfio`."""
        return "vfio"

    @property
    def name(self) -> DeviceName:
        """The device name: `gpu-vfio-<index>`."""
        return device_names.vfio_name(self.index)

    @property
    def uuid(self) -> VfioUUID:
        """That of its PCI address, from `uuid_at`."""
        return uuid_at(self.pci)


def uuid_at(pci: PciAddress) -> VfioUUID:
    """The UUID of the vfio device of the GPU at a PCI address.

    It is of version 5, in the namespace of DNS, and the same on every node that has a GPU there.
    """
    return VfioUUID(str(uuid.uuid5(uuid.NAMESPACE_DNS, pci)))


def indexes(
    addresses: Iterable[PciAddress], kept: Mapping[PciAddress, int]
) -> dict[PciAddress, int]:
    """The numbers in the names of vfio devices, by PCI address.

    A GPU that is seen for the first time in a boot gets its position among all GPUs by address, or,
    if another one has that number, the lowest number that none has. A GPU keeps its number when
    others go or come, as a claim may hold it by its name.

    Args:
        addresses: All whole GPUs of the node, whether they are offered or not.
        kept: What this function has returned before in this boot; empty at its start.

    Returns:
        The numbers of these GPUs and of those that are gone. The caller keeps them for the boot.

    Source: docs/reference/gpu-devices.md, "List of GPUs"; the reference numbers anew at each scan.
    """
    found = dict(kept)
    taken = set(kept.values())
    new: list[PciAddress] = []
    for position, pci in enumerate(sorted(set(addresses), key=_number)):
        if pci in found:
            continue
        if position in taken:
            new.append(pci)
        else:
            found[pci] = position
            taken.add(position)
    free = (number for number in range(len(taken) + len(new)) if number not in taken)
    found.update(zip(new, free, strict=False))  # there are more numbers than GPUs
    return found


def _number(pci: PciAddress) -> int:
    """The order of addresses: domain, bus, device and function as one number."""
    return int(pci.replace(":", "").replace(".", ""), 16)
