"""What discovery finds, before it becomes edits. Paths are absolute inside their root."""

from dataclasses import dataclass

CAPABILITY_NODES = "/dev/nvidia-caps"
"""Of the nodes of capabilities."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the driver.

    Attributes:
        path: Where the container gets it.
        source: Where it is below the driver root, all links followed.
    """

    path: str
    source: str


@dataclass(frozen=True, slots=True)
class Library:
    """A library of the driver, at the same path in the container.

    Attributes:
        path: All links followed.
        soname: From its dynamic section; the file name when it states none; None when it is no
            ELF file.
        links: Which links named after the soname exist beside it on the host.
    """

    path: str
    soname: str | None
    links: frozenset[str]


@dataclass(frozen=True, slots=True)
class Node:
    """A character device.

    Attributes:
        path: Where the container gets it.
        source: Where it is below the dev root, all links followed.
        major: Device number.
        minor: Device number.
        mode: Permission bits, 12 of them.
        gid: Its group.
    """

    path: str
    source: str
    major: int
    minor: int
    mode: int
    gid: int


@dataclass(frozen=True, slots=True)
class Capability:
    """The right to use a MIG instance: a device node that need not exist on the host.

    Attributes:
        major: Device number.
        minor: Device number; it names the node, too.
        mode: Permission bits.
    """

    major: int
    minor: int
    mode: int

    @property
    def path(self) -> str:
        """Where the container gets it."""
        return f"{CAPABILITY_NODES}/nvidia-cap{self.minor}"


@dataclass(frozen=True, slots=True)
class Driver:
    """An installed driver.

    Attributes:
        version: `580.95.05`.
        directories: The directories of its libraries, in the order found.
        libraries: In mount order: main directories first, then their `vdpau`.
        graphics_libraries: EGL platforms, those that only get a link, X.Org modules, in this order.
        files: Programs and firmware.
        graphics_files: Configuration of graphics loaders, and the X.Org tool.
        sockets: Of the driver's services.
        mps_pipe: The directory of a host's MPS daemon.
    """

    version: str
    directories: tuple[str, ...]
    libraries: tuple[Library, ...]
    graphics_libraries: tuple[File, ...]
    files: tuple[File, ...]
    graphics_files: tuple[File, ...]
    sockets: tuple[File, ...]
    mps_pipe: File | None


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """The device nodes of one GPU.

    Attributes:
        nodes: Its own first, then its DRM nodes.
        by_path: `/dev/dri/by-path` links to those nodes: path and target as stored.
    """

    nodes: tuple[Node, ...]
    by_path: tuple[tuple[str, str], ...]
