"""The driver's installation as the node's files tell of it.

NVML is not asked, so a board that hangs hangs nothing here. Two readings that are equal mean that
nobody has installed, removed or replaced the driver, and that the bus has the same boards.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nvdra_api.runtime.node.host import Host
from nvdra_api.types.ids import PciAddress

_LIBRARY = "libnvidia-ml.so.1"


class FileID(NamedTuple):
    """Which file a path named when it was looked at, and when it was last written."""

    device: int
    inode: int
    size: int
    written_ns: int


Nodes = Mapping[str, int]
"""Device nodes of the driver: number by name."""


Loadable = tuple[Path, FileID]
"""What a process loads once: it serves until another file takes the place."""


class Installation(NamedTuple):
    """What is installed.

    Attributes:
        library: NVML's library, its links resolved; its name carries the version.
        file: The file there.
        kernel: Version of the kernel module that is loaded; empty where none is.
        boards: What the module drives, in the order of the bus, which is NVML's too.
    """

    library: Path
    file: FileID
    kernel: str
    boards: tuple[PciAddress, ...]

    @property
    def loadable(self) -> Loadable:
        """NVML's library, and which file that is."""
        return self.library, self.file


def read(host: Host) -> Installation:
    """Look at the files; microseconds.

    Raises:
        FileNotFoundError: No driver is installed; the message says where it was looked for.
    """
    library = host.find_library(_LIBRARY)
    return Installation(library, file_id(library), _kernel(host), _boards(host))


def file_id(path: Path) -> FileID:
    """Which file is there.

    Raises:
        FileNotFoundError: None.
    """
    status = path.stat()
    return FileID(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def minor(host: Host, board: PciAddress) -> int | None:
    """The N of a board's `/dev/nvidiaN` as the kernel module tells it; None where it does not.

    May hang with the board: it is asked on the board's own thread.
    """
    try:
        facts = (_gpus(host) / board / "information").read_text()
    except OSError:
        return None
    for line in facts.splitlines():
        name, _, value = line.partition(":")
        if name == "Device Minor" and value.strip().isdecimal():
            return int(value)
    return None


def nodes(directory: Path) -> Nodes:
    """The driver's device nodes in the host's /dev."""
    found: dict[str, int] = {}
    for path in directory.glob("nvidia*"):
        with suppress(FileNotFoundError):  # it goes in this moment
            found[path.name] = path.lstat().st_rdev
    return found


def majors(host: Host) -> dict[int, frozenset[str]]:
    """The drivers behind each major number of character devices, from `/proc/devices`.

    Empty where that lists none of NVIDIA's, as with a driver that somebody imitates.
    """
    found: dict[int, set[str]] = {}
    try:
        text = (host.proc / "devices").read_text()
    except OSError:
        return {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal():
            found.setdefault(int(number), set()).add(name.strip())
    if not any(name.startswith("nvidia") for names in found.values() for name in names):
        return {}
    return {number: frozenset(names) for number, names in found.items()}


def _kernel(host: Host) -> str:
    try:
        return (host.sys / "module/nvidia/version").read_text().strip()
    except OSError:
        return ""


def _boards(host: Host) -> tuple[PciAddress, ...]:
    try:
        return tuple(sorted(PciAddress(path.name.lower()) for path in _gpus(host).iterdir()))
    except OSError:
        return ()


def _gpus(host: Host) -> Path:
    return host.proc / "driver/nvidia/gpus"
