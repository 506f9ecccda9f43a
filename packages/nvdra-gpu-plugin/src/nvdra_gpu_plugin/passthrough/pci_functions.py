# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of the node as sysfs shows them, read at once. Nothing is changed here.

These calls block, for some milliseconds on a node with 200 functions: the caller runs them on a
worker's thread. Every file that is read here answers also while a driver is being unbound from the
function. `uevent` is not read: some kernels between 6.1 and 6.15 take the device's lock for it,
which an unbind holds.

Sources: Documentation/ABI/testing/sysfs-bus-pci of Linux; docs/reference/gpu-devices.md, "PCI
record of one function".
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nvdra_api.ids import PciAddress
from nvdra_runtime.node.host import Host

NVIDIA: Final = 0x10DE
CLASS_VGA: Final = 0x0300
CLASS_3D: Final = 0x0302
CLASS_PCI_BRIDGE: Final = 0x0604
"""Base class and subclass, the upper 16 of the 24 bits of `class`."""

NO_OVERRIDE: Final = "(null)"
"""What `driver_override` reads while none is set."""
NOIOMMU: Final = "vfio-noiommu"
"""The name of a group that vfio makes for a device without IOMMU (drivers/vfio/group.c)."""

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CONSUMER: Final = "consumer:pci:"
_BARS: Final = 6
_MEMORY_64: Final = 0x04
_MEMORY_TYPE: Final = 0x06


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One PCI function.

    Attributes:
        pci: Its address.
        vendor: Its vendor's number.
        device: Its number among those of the vendor.
        class_code: Base class, subclass and programming interface, 24 bits.
        driver: The driver of the link `driver`; None without the link. That is not yet proof that
            the function is free: the link goes when an unbind begins.
        override: The name in `driver_override`; None if none is set.
        group: Its IOMMU group; None without one, and for a group without IOMMU.
        physical_function: Of a virtual function, the function that has made it.
        virtual_functions: How many virtual functions it has now.
        is_boot_display: Whether the firmware has chosen it for the screen (`boot_vga`).
        has_framebuffer: Whether the kernel has a console's framebuffer on it (`graphics/fb0`).
        numa_node: Its NUMA node; None if the kernel knows none.
        pcie_root: The host bridge above it, `pci0000:15`; None if it is not below one.
        consumers: The functions that the kernel lets depend on it, in the order of addresses.
        vfio_device: Its entry `vfio-dev/vfioN` while it is on a vfio driver. It is there also on
            kernels without a node `/dev/vfio/devices/vfioN`.
        modalias: What modules are chosen by, `pci:v000010DEd…`; empty if the kernel does not say.
        memory_bytes: What a guest maps of it: its 64-bit BARs, rounded up to a power of two
            (docs/reference/gpu-devices.md, "Fields of a VFIO device").
    """

    pci: PciAddress
    vendor: int
    device: int
    class_code: int
    driver: str | None = None
    override: str | None = None
    group: int | None = None
    physical_function: PciAddress | None = None
    virtual_functions: int = 0
    is_boot_display: bool = False
    has_framebuffer: bool = False
    numa_node: int | None = None
    pcie_root: str | None = None
    consumers: tuple[PciAddress, ...] = ()
    vfio_device: str | None = None
    modalias: str = ""
    memory_bytes: int = 0

    @property
    def slot(self) -> str:
        """The address without the function: `0000:3b:00`."""
        return self.pci.rpartition(".")[0]

    @property
    def is_gpu(self) -> bool:
        """Whether it is a whole NVIDIA GPU, and not a virtual function of one."""
        is_display = self.class_code >> 8 in (CLASS_VGA, CLASS_3D)
        return self.vendor == NVIDIA and is_display and self.physical_function is None

    @property
    def is_bridge(self) -> bool:
        """Whether it is a PCI bridge. Those do not matter for whether a group is viable."""
        return self.class_code >> 8 == CLASS_PCI_BRIDGE

    @property
    def is_on_vfio(self) -> bool:
        """Whether a vfio driver has it."""
        return self.driver is not None and is_vfio(self.driver)


@dataclass(frozen=True, slots=True)
class PciBus:
    """PCI functions, and what else of the host tells who has them.

    Attributes:
        functions: The functions that were read.
        drivers: The drivers that are registered, by the names of their directories.
        vfio_groups: The groups in `/sys/class/vfio`: those of which vfio has a function, or has not
            let go of it yet.
        nvidia_gpus: The GPUs in `/proc/driver/nvidia/gpus`: those that the NVIDIA driver has, or
            has not let go of yet.
        has_iommu: Whether the node has IOMMU groups.
        unreadable: Why a function is left out, by address.
    """

    functions: Mapping[PciAddress, PciFunction]
    drivers: frozenset[str] = frozenset()
    vfio_groups: frozenset[int] = frozenset()
    nvidia_gpus: frozenset[PciAddress] = frozenset()
    has_iommu: bool = False
    unreadable: Mapping[PciAddress, str] = field(default_factory=dict)

    def in_group(self, group: int | None) -> tuple[PciFunction, ...]:
        """The functions of an IOMMU group that were read; none of no group."""
        if group is None:
            return ()
        return tuple(each for each in self.functions.values() if each.group == group)


def is_vfio(driver: str) -> bool:
    """Whether a driver is vfio-pci or a variant of it, such as `nvgrace_gpu_vfio_pci`.

    A variant is named as its module, which Linux names so: drivers/vfio/pci/*/Makefile.
    """
    return driver.replace("_", "-").endswith("vfio-pci")


def read(host: Host) -> PciBus:
    """Read all functions. What cannot be read of one of them is in `unreadable`.

    Raises:
        OSError: The PCI bus itself cannot be read.
    """
    directory = host.sys / "bus/pci/devices"
    return _read(host, sorted(name for name in _names(directory) if _ADDRESS.fullmatch(name)))


def read_some(host: Host, addresses: Collection[PciAddress]) -> PciBus:
    """Read some functions, and all others of their IOMMU groups."""
    wanted = set(addresses)
    for pci in addresses:
        group = _device_dir(host, pci) / "iommu_group/devices"
        wanted.update(PciAddress(name) for name in _names(group, missing_ok=True))
    return _read(host, sorted(wanted))


def cdev(host: Host, function: PciFunction) -> Path | None:
    """The node `/dev/vfio/devices/vfioN` of a function; None without one.

    The entry `vfio-dev/vfioN` in sysfs is there on kernels without such nodes, too.
    """
    if function.vfio_device is None:
        return None
    node = host.dev / "vfio/devices" / function.vfio_device
    return node if node.is_char_device() else None


def has_iommufd(host: Host) -> bool:
    """Whether the node has `/dev/iommu`."""
    return (host.dev / "iommu").is_char_device()


def numa_node(host: Host, pci: PciAddress) -> int | None:
    """The NUMA node; None if the kernel reports -1, which means that it knows none."""
    try:
        node = int((_device_dir(host, pci) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def pcie_root(host: Host, pci: PciAddress) -> str | None:
    """The PCI host bridge above a function, `pci<domain>:<bus>`.

    None if the function is not below one. On Hyper-V, its path in sysfs does not start with
    `devices/pci…` (docs/reference/gpu-devices.md, "PCI and sysfs lookups").
    """
    try:
        link = _device_dir(host, pci).readlink()
    except OSError:
        return None
    # Resolved lexically, as a path inside sysfs: `..` must not lead out of where it is mounted.
    parts = Path(os.path.normpath(Path("/bus/pci/devices") / link)).parts
    if len(parts) < 3 or parts[1] != "devices" or not parts[2].startswith("pci"):
        return None
    return parts[2] if parts[-1] == pci else None


def _read(host: Host, addresses: Collection[str]) -> PciBus:
    functions: dict[PciAddress, PciFunction] = {}
    unreadable: dict[PciAddress, str] = {}
    for pci in map(PciAddress, addresses):
        try:
            functions[pci] = _function(host, pci)
        except (OSError, ValueError) as error:
            if _device_dir(host, pci).exists():  # or it has left the bus
                unreadable[pci] = str(error)
    groups = _names(host.sys / "class/vfio", missing_ok=True)
    gpus = _names(host.proc / "driver/nvidia/gpus", missing_ok=True)
    return PciBus(
        functions=functions,
        drivers=frozenset(_names(host.sys / "bus/pci/drivers", missing_ok=True)),
        vfio_groups=frozenset(int(name) for name in groups if name.isdecimal()),
        nvidia_gpus=frozenset(PciAddress(name.lower()) for name in gpus),
        has_iommu=bool(_names(host.sys / "kernel/iommu_groups", missing_ok=True)),
        unreadable=unreadable,
    )


def _function(host: Host, pci: PciAddress) -> PciFunction:
    """Read one function.

    Raises:
        OSError: A file that every function has cannot be read.
        ValueError: A file has not the form that the kernel gives it.
    """
    directory = _device_dir(host, pci)
    present = set(_names(directory))
    consumers = (name.removeprefix(_CONSUMER) for name in present if name.startswith(_CONSUMER))
    is_virtual = "physfn" in present
    return PciFunction(
        pci=pci,
        vendor=int(_text(directory / "vendor"), 16),
        device=int(_text(directory / "device"), 16),
        class_code=int(_text(directory / "class"), 16),
        driver=_target(directory / "driver"),
        override=_override(directory) if "driver_override" in present else None,
        group=_group(directory),
        physical_function=PciAddress(_target(directory / "physfn") or "") if is_virtual else None,
        virtual_functions=(
            int(_text(directory / "sriov_numvfs")) if "sriov_numvfs" in present else 0
        ),
        is_boot_display="boot_vga" in present and _text(directory / "boot_vga") == "1",
        has_framebuffer="graphics" in present,
        numa_node=numa_node(host, pci),
        pcie_root=pcie_root(host, pci),
        consumers=tuple(sorted(map(PciAddress, consumers))),
        vfio_device=_vfio_device(directory) if "vfio-dev" in present else None,
        modalias=_text(directory / "modalias") if "modalias" in present else "",
        memory_bytes=_memory_bytes(directory) if "resource" in present else 0,
    )


def _override(directory: Path) -> str | None:
    name = _text(directory / "driver_override")
    return None if name in ("", NO_OVERRIDE) else name


def _group(directory: Path) -> int | None:
    number = _target(directory / "iommu_group")
    if number is None:
        return None
    try:
        if _text(directory / "iommu_group/name") == NOIOMMU:
            return None
    except FileNotFoundError:  # most groups have no name
        pass
    return int(number)


def _vfio_device(directory: Path) -> str | None:
    names = _names(directory / "vfio-dev", missing_ok=True)
    return next((name for name in sorted(names) if name.startswith("vfio")), None)


def _memory_bytes(directory: Path) -> int:
    total = 0
    for line in _text(directory / "resource").splitlines()[:_BARS]:
        start, end, flags = (int(word, 16) for word in line.split())
        if end > start and flags & _MEMORY_TYPE == _MEMORY_64:
            total += end - start + 1
    return 1 << (total - 1).bit_length() if total else 0


def _device_dir(host: Host, pci: PciAddress) -> Path:
    return host.sys / "bus/pci/devices" / pci


def _text(path: Path) -> str:
    return path.read_text(errors="replace").strip()


def _target(link: Path) -> str | None:
    """The name that a link leads to; None without the link."""
    try:
        return link.readlink().name
    except FileNotFoundError:
        return None


def _names(directory: Path, *, missing_ok: bool = False) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        if missing_ok:
            return []
        raise
