"""NVML and sysfs → the boards of an inventory (spec/gpu-devices.md §6).

Blocks: a board is asked on its own thread, so that one that hangs keeps nobody else waiting.
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.nvml import Handle, Nvml
from nvdra_api.types.ids import PciAddress

from nvdra_gpu_plugin.inventory import Gpu

ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""NVML's ids in the words that selectors use; another id is published as `Unknown`."""

BRANDS: Final = (
    *("Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan", "NvidiaVApps"),
    *("NvidiaVPC", "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX"),
    *("Nvidia", "GeForceRTX", "TitanRTX"),
)
ADDRESSING_MODES: Final = ("None", "HMM", "ATS")
UNKNOWN: Final = "Unknown"

_DISPLAY_BOARDS = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""Boards that drive a DGX Station's screen; not for work."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class Driver(NamedTuple):
    """What NVML says of itself, once for all boards."""

    version: str
    cuda: str


def driver(nvml: Nvml) -> Driver:
    """Ask for the versions.

    Raises:
        NvmlError: NVML itself does not answer; nothing can be said about the node.
    """
    return Driver(nvml.driver_version(), _cuda(nvml.cuda_driver_version()))


def board(nvml: Nvml, index: int, host: Host, versions: Driver) -> tuple[Gpu, Handle] | None:
    """Look at one board of the node; None for one that is not for work.

    Args:
        nvml: An open session.
        index: Its place in the order of the bus.
        host: Where sysfs is.
        versions: Of the driver.

    Raises:
        NvmlError: It does not answer as it should.
        ValueError: It says what makes no sense.
    """
    handle = nvml.handle_by_index(index)
    if nvml.name(handle) in _DISPLAY_BOARDS:
        return None
    return _describe(nvml, handle, host, versions), handle


def _describe(nvml: Nvml, handle: Handle, host: Host, versions: Driver) -> Gpu:
    pci = nvml.pci_bus_id(handle)
    if not _PCI_ADDRESS.fullmatch(pci):
        raise ValueError(f"{handle.uuid}: {pci} is not a PCI address of 16 bits of domain")
    major, minor = nvml.compute_capability(handle)
    mode = nvml.addressing_mode(handle)
    return Gpu(
        uuid=handle.uuid,
        minor=nvml.minor(handle),
        pci=pci,
        product_name=nvml.name(handle),
        brand=_word(BRANDS, nvml.brand(handle)),
        architecture=ARCHITECTURES.get(nvml.architecture(handle), UNKNOWN),
        compute_capability=f"{major}.{minor}",
        driver_version=versions.version,
        cuda_driver_version=versions.cuda,
        memory_bytes=nvml.memory_total(handle),
        addressing_mode=None if mode is None else _word(ADDRESSING_MODES, mode),
        numa_node=_numa_node(host, pci),
        pcie_root=_pcie_root(host, pci),
        is_mig_enabled=nvml.is_mig_enabled(handle),
    )


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else UNKNOWN


def _device_dir(host: Host, pci: PciAddress) -> Path:
    return host.sys / "bus/pci/devices" / pci


def _numa_node(host: Host, pci: PciAddress) -> int | None:
    """The kernel says -1 where it knows none."""
    try:
        node = int((_device_dir(host, pci) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _pcie_root(host: Host, pci: PciAddress) -> str | None:
    """The PCI host bridge above the board, `pci<domain>:<bus>`.

    None where the device does not hang below one, as on Hyper-V: sysfs then starts elsewhere than
    at `devices/pci…` (spec/gpu-devices.md §6.3).
    """
    try:
        link = _device_dir(host, pci).readlink()
    except OSError:
        return None
    # Lexically, as a path inside sysfs: wherever that is mounted, `..` must not leave it.
    parts = Path(os.path.normpath(Path("/bus/pci/devices") / link)).parts
    if len(parts) < 3 or parts[1] != "devices" or not parts[2].startswith("pci"):
        return None
    return parts[2] if parts[-1] == pci else None
