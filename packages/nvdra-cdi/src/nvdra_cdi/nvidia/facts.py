# SPDX-License-Identifier: Apache-2.0
"""The facts that discovery collects as input of `edits`. Paths are absolute within their root."""

from dataclasses import dataclass

CAPABILITY_NODES = "/dev/nvidia-caps"
"""The directory of the device nodes of capabilities."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the driver.

    Attributes:
        path: The path in the container.
        source: The path within the driver root, all links resolved.
    """

    path: str
    source: str


@dataclass(frozen=True, slots=True)
class Library:
    """A library of the driver. It has the same path in the container.

    Attributes:
        path: The path, all links resolved.
        soname: The soname from its dynamic section, or its file name if it has no soname. None if
            it is not an ELF file.
        links: The links named after the soname that exist in its directory.
    """

    path: str
    soname: str | None
    links: frozenset[str]


@dataclass(frozen=True, slots=True)
class CharacterDevice:
    """The node of a character device.

    Attributes:
        path: The path in the container.
        source: The path within the dev root, all links resolved.
        major: The major device number.
        minor: The minor device number.
        mode: The 12 permission bits.
        gid: The group.
    """

    path: str
    source: str
    major: int
    minor: int
    mode: int
    gid: int


@dataclass(frozen=True, slots=True)
class Capability:
    """A device node that gives access to a MIG instance. It need not exist on the host.

    Attributes:
        major: The major device number.
        minor: The minor device number, which is also part of the path.
        mode: The permission bits.
    """

    major: int
    minor: int
    mode: int

    @property
    def path(self) -> str:
        """The path in the container."""
        return f"{CAPABILITY_NODES}/nvidia-cap{self.minor}"


@dataclass(frozen=True, slots=True)
class Driver:
    """An installed driver.

    Attributes:
        version: For example `580.95.05`.
        directories: The directories with its libraries, in the order found.
        libraries: The libraries in mount order: main directories, then their `vdpau` directories.
        graphics_libraries: EGL platforms, libraries that only need a link, and X.Org modules, in
            this order.
        files: Programs and firmware.
        graphics_files: Configuration of graphics loaders, and the X.Org tool.
        sockets: The sockets of the driver's services.
        mps_pipe: The pipe directory of an MPS daemon on the host, if there is one.
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
class GpuDeviceNodes:
    """The device nodes of one GPU.

    Attributes:
        nodes: The GPU's own node, then its DRM nodes.
        by_path: The links in `/dev/dri/by-path` to these nodes: path and target as stored.
    """

    nodes: tuple[CharacterDevice, ...]
    by_path: tuple[tuple[str, str], ...]
