# SPDX-License-Identifier: Apache-2.0
"""How PCI functions are, as sysfs tells without any driver of them: for GPUs that vfio has.

A GPU in D3cold is not asked, because that would wake it: the kernel powers it up for a read of
`config` or of its link, and for no read in another state (`pci_config_pm_runtime_get`). The name of
the state and the counters of errors are the kernel's own, and never wake a GPU.

These calls block while somebody resets the function, up to a minute: the kernel holds back reads of
the configuration space meanwhile (`pci_cfg_access_lock`), so that what is read is never a reset.

Sources: Linux, Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-pci-devices-aer_stats;
drivers/pci/pci.c, drivers/pci/pci-sysfs.c.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from nvdra_api.ids import PciAddress
from nvdra_runtime.node.host import Host

NO_VENDOR: Final = b"\xff\xff"
"""What the first register reads as if no function answers (PCI Local Bus Specification, 6.2.1)."""

LINK_WIDTHS: Final = frozenset({1, 2, 4, 8, 12, 16, 32})
"""The numbers of lanes that a link can have. A register that is not answered reads as 63, the link
of a port without a card as 0."""

_TOTAL_FATAL: Final = "TOTAL_ERR_FATAL"


class _Reads(NamedTuple):
    """What may be read of a function in a power state."""

    configuration: bool
    link: bool


_AWAKE: Final = _Reads(configuration=True, link=True)
_ASLEEP: Final = _Reads(configuration=True, link=False)
_OFF: Final = _Reads(configuration=False, link=False)

_READS: Final[Mapping[str, _Reads]] = MappingProxyType(
    {
        "D0": _AWAKE,
        "D1": _ASLEEP,
        "D2": _ASLEEP,
        "D3hot": _ASLEEP,
        "D3cold": _OFF,
        "unknown": _ASLEEP,
        "error": _ASLEEP,
        "": _AWAKE,
    }
)
"""By `power_state`. The link of a function that sleeps says nothing: its port may sleep, too. Linux
before 5.11 has no such file, and no function of vfio in D3cold."""


class PciLook(NamedTuple):
    """How a function is now.

    Attributes:
        is_silent: Whether it does not answer, or has left the bus; None if it was not asked.
        lanes: The lanes that its link has; None if it was not asked, or does not say.
        full_lanes: Those that it could have in its slot; None as `lanes`.
        fatal_errors: The fatal errors of PCIe that the kernel has counted of it (AER) since it was
            found; None if the kernel does not count them, as where the firmware handles them.
        error: Why it is not known how it is; empty if it is known.
    """

    is_silent: bool | None = None
    lanes: int | None = None
    full_lanes: int | None = None
    fatal_errors: int | None = None
    error: str = ""


def read(host: Host, pci: PciAddress, *, may_wake: bool = False) -> PciLook:
    """How a function is.

    Args:
        host: The node.
        pci: Its address.
        may_wake: Whether it is asked whether it answers even if that wakes it.
    """
    directory = host.sys / "bus/pci/devices" / pci
    try:
        power = _text(directory / "power_state")
        reads = _READS.get(power, _ASLEEP)
        is_silent = _is_silent(directory) if reads.configuration or may_wake else None
        asks_link = reads.link and is_silent is False
        lanes, full_lanes = _lanes(directory) if asks_link else (None, None)
        return PciLook(is_silent, lanes, full_lanes, _fatal_errors(directory))
    except (OSError, ValueError) as error:
        if not directory.exists():
            return PciLook(is_silent=True)
        return PciLook(error=str(error))


def _is_silent(directory: Path) -> bool:
    with (directory / "config").open("rb", buffering=0) as file:
        return file.read(len(NO_VENDOR)) == NO_VENDOR


def _lanes(directory: Path) -> tuple[int | None, int | None]:
    """The lanes of the link, and the most that both of its ends have."""
    now = _width(directory / "current_link_width")
    most = _width(directory / "max_link_width")
    port = _width(directory.resolve().parent / "max_link_width")
    if now is None or most is None:
        return None, None
    return now, most if port is None else min(most, port)


def _width(path: Path) -> int | None:
    """The lanes in a file; None if there is no such file, or the kernel answers EINVAL."""
    try:
        text = _text(path)
    except OSError:
        return None
    lanes = int(text) if text.isdecimal() else 0
    return lanes if lanes in LINK_WIDTHS else None


def _fatal_errors(directory: Path) -> int | None:
    """The last line, which counts messages: a message may report several errors."""
    for line in _text(directory / "aer_dev_fatal").splitlines():
        name, _, count = line.rpartition(" ")
        if name == _TOTAL_FATAL:
            return int(count)
    return None


def _text(path: Path) -> str:
    """The content of a file; empty if this kernel has no such file."""
    try:
        return path.read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
