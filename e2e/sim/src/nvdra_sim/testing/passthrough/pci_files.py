# SPDX-License-Identifier: Apache-2.0
"""PCI functions and their drivers as files below a sysfs root: read, and written as a shell would.

A write is one system call, and its result is the name of its error, so that a test can compare what
the kernel answers. Source of the files: Documentation/ABI/testing/sysfs-bus-pci of Linux.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

OK = "ok"
"""The result of a write that the kernel has accepted."""
VFIO = "vfio-pci"
"""The driver's name in sysfs. Its module is `vfio_pci`."""
NO_OVERRIDE = "(null)"
"""What `driver_override` reads while it is empty."""
CLEAR = "\n"
"""What is written to `driver_override` to empty it. An empty write changes nothing."""


class PciFiles:
    """The files of the PCI bus.

    Args:
        sys_root: As `/sys`.
        dev_root: As `/dev`.
    """

    def __init__(self, sys_root: Path, dev_root: Path) -> None:
        self.sys_root = sys_root
        self.bus = sys_root / "bus/pci"
        self.vfio_nodes = dev_root / "vfio"
        self.iommu_node = dev_root / "iommu"

    def device(self, address: str) -> Path:
        """The directory of a function."""
        return self.bus / "devices" / address

    def has_driver(self, driver: str) -> bool:
        """Whether a driver of that name is registered."""
        return (self.bus / "drivers" / driver).is_dir()

    def driver(self, address: str) -> str | None:
        """The driver that a function is bound to."""
        return _target(self.device(address) / "driver")

    def group(self, address: str) -> str | None:
        """The number of the IOMMU group of a function."""
        return _target(self.device(address) / "iommu_group")

    def members(self, group: str) -> set[str]:
        """The addresses of all functions and bridges of a group."""
        directory = self.sys_root / "kernel/iommu_groups" / group / "devices"
        return {path.name for path in directory.iterdir()}

    def override(self, address: str) -> str:
        """The text of `driver_override` without its end of line."""
        return (self.device(address) / "driver_override").read_text().rstrip("\n")

    def vfio_name(self, address: str) -> str | None:
        """The entry of `vfio-dev`, `vfioN`, that a function has while it is on a VFIO driver."""
        directory = self.device(address) / "vfio-dev"
        names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        assert len(names) <= 1, names
        return names[0] if names else None

    def bind(self, driver: str, address: str) -> str:
        """Bind a function to a driver. Returns `OK` or the name of the error."""
        return write(self.bus / "drivers" / driver / "bind", address)

    def unbind(self, driver: str, address: str) -> str:
        """Unbind a function from a driver. Returns `OK` or the name of the error."""
        return write(self.unbind_file(driver), address)

    def unbind_file(self, driver: str) -> Path:
        """The file to which the address of a function is written to unbind it."""
        return self.bus / "drivers" / driver / "unbind"

    def probe(self, address: str) -> str:
        """Let the kernel choose a driver. Returns `OK` or the name of the error."""
        return write(self.bus / "drivers_probe", address)

    def set_override(self, address: str, text: str) -> str:
        """Write `driver_override`. Returns `OK` or the name of the error."""
        return write(self.device(address) / "driver_override", text)

    def remove(self, address: str) -> str:
        """Take a function off the bus. Returns `OK` or the name of the error."""
        return write(self.device(address) / "remove", "1")

    def rescan(self) -> str:
        """Look for functions. Returns `OK` or the name of the error."""
        return write(self.bus / "rescan", "1")


def write(path: Path, text: str, flags: int = 0) -> str:
    """Write `text` to a file with one system call.

    Args:
        path: A file that exists.
        text: What is written. Nothing is added.
        flags: Flags of `open` beside O_WRONLY.

    Returns:
        `OK`, or the name of the error of the write, for example `ENODEV`.

    Raises:
        OSError: The file cannot be opened.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    finally:
        os.close(descriptor)
    return OK


def _target(link: Path) -> str | None:
    try:
        return Path(os.readlink(link)).name  # noqa: PTH115 (pathlib resolves no name by itself)
    except FileNotFoundError:
        return None
