# SPDX-License-Identifier: Apache-2.0
"""Reads from files which NVIDIA driver is installed on the node.

NVML is not used, so that a GPU that hangs does not block this. As long as the result is equal, the
driver has not been installed, removed or replaced, and the node has the same GPUs.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_cdi.errors import DiscoveryError, MissingCapabilitiesError
from nvdra_cdi.nvidia import nvcaps
from nvdra_cdi.rooted_files import RootedFiles
from nvdra_runtime.node.host import Host

_LIBRARY = "libnvidia-ml.so.1"


CAPABILITIES_REMEDY: Final = (
    "no container can get a MIG device without; the chart's global.procRoot is not the node's "
    "procfs, or the kernel module nvidia is not loaded: look at both on the node"
)
"""What follows if `/proc/devices` does not list the capabilities of MIG, and what to do."""


class FileID(NamedTuple):
    """Identity of a file, and when it was last written."""

    device: int
    inode: int
    size: int
    written_ns: int


DeviceNodes = Mapping[str, int]
"""Device numbers of the driver's device nodes, by name."""

LibraryID = tuple[Path, FileID]
"""A library's path and file. A process loads a library once, until the file is replaced."""


class GpuFacts(NamedTuple):
    """What the kernel module says of a GPU.

    Attributes:
        minor: The N of its `/dev/nvidiaN`; None if it does not say.
        uuid: None if it does not say, or not before the GPU is used for the first time.
    """

    minor: int | None = None
    uuid: GpuUUID | None = None


class DriverInstallation(NamedTuple):
    """An installed driver.

    Attributes:
        library: Path of NVML's library with links resolved; its name contains the version.
        file: The library's file.
        kernel_module: Version of the loaded kernel module; empty if none is loaded.
        gpus: The GPUs that the module drives, in the order of PCI addresses, as in NVML.
    """

    library: Path
    file: FileID
    kernel_module: str
    gpus: tuple[PciAddress, ...]

    @property
    def library_id(self) -> LibraryID:
        """NVML's library and its file."""
        return self.library, self.file


def read(host: Host) -> DriverInstallation:
    """Read the files. This takes microseconds.

    Raises:
        FileNotFoundError: No driver is installed; the message names the searched directories.
        OSError: A file cannot be read, so it is not known what is installed.
    """
    library = host.find_library(_LIBRARY)
    return DriverInstallation(
        library, file_id(library), _kernel_module_version(host), _gpu_addresses(host)
    )


def file_id(path: Path) -> FileID:
    """Identity of the file at a path.

    Raises:
        FileNotFoundError: There is no file.
    """
    status = path.stat()
    return FileID(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def gpu_facts(host: Host, pci: PciAddress) -> GpuFacts:
    """What the kernel module says of a GPU.

    This may hang if the GPU hangs, so it is called on the GPU's thread.
    """
    try:
        text = (_gpus_dir(host) / pci / "information").read_text()
    except OSError:
        return GpuFacts()
    lines = (line.partition(":") for line in text.splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines}
    minor, uuid = found.get("Device Minor", ""), found.get("GPU UUID", "")
    is_known = uuid.startswith("GPU-") and "?" not in uuid
    return GpuFacts(int(minor) if minor.isdecimal() else None, GpuUUID(uuid) if is_known else None)


def mig_instances(host: Host) -> frozenset[str]:
    """The MIG instances that the kernel module lists, as paths: `gpu0/mig/gi1`, `gpu0/mig/gi1/ci0`.

    It lists them as long as they exist, so that other paths mean that some were made or destroyed.
    """
    capabilities = host.proc / "driver/nvidia/capabilities"
    found = (*capabilities.glob("gpu*/mig/gi*"), *capabilities.glob("gpu*/mig/gi*/ci*"))
    return frozenset(str(path.relative_to(capabilities)) for path in found)


def gpu_of_instance(path: str) -> int | None:
    """The minor number of the GPU of an instance of `mig_instances`; None if it has none."""
    number = path.partition("/")[0].removeprefix("gpu")
    return int(number) if number.isdecimal() else None


def device_nodes(directory: Path) -> DeviceNodes:
    """The driver's device nodes in the host's /dev."""
    found: dict[str, int] = {}
    for path in directory.glob("nvidia*"):
        with suppress(FileNotFoundError):  # it is being removed
            found[path.name] = path.lstat().st_rdev
    return found


def drivers_by_major(host: Host) -> dict[int, frozenset[str]]:
    """The drivers behind each major number of character devices, from `/proc/devices`.

    Empty if it lists no NVIDIA driver, as on a node with a simulated one.

    Raises:
        OSError: The file cannot be read.
    """
    found: dict[int, set[str]] = {}
    try:
        text = (host.proc / "devices").read_text()
    except FileNotFoundError:
        return {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal():
            found.setdefault(int(number), set()).add(name.strip())
    if not any(name.startswith("nvidia") for names in found.values() for name in names):
        return {}
    return {number: frozenset(names) for number, names in found.items()}


def capabilities_problem(host: Host) -> str:
    """Why no container can get a MIG device; empty if the node has what that needs."""
    try:
        nvcaps.capabilities_major(RootedFiles(str(host.proc)))
    except DiscoveryError as error:
        return with_remedy(error)
    return ""


def with_remedy(error: DiscoveryError) -> str:
    """What is missing on the node, with what to do where the capabilities of MIG are."""
    is_of_mig = isinstance(error, MissingCapabilitiesError)
    return f"{error}; {CAPABILITIES_REMEDY}" if is_of_mig else str(error)


def _kernel_module_version(host: Host) -> str:
    try:
        return (host.sys / "module/nvidia/version").read_text().strip()
    except FileNotFoundError:
        return ""


def _gpu_addresses(host: Host) -> tuple[PciAddress, ...]:
    try:
        return tuple(sorted(PciAddress(path.name.lower()) for path in _gpus_dir(host).iterdir()))
    except FileNotFoundError:
        return ()


def _gpus_dir(host: Host) -> Path:
    return host.proc / "driver/nvidia/gpus"
