# SPDX-License-Identifier: Apache-2.0
"""A minimal driver root of real files, for tests of CDI generation.

Device nodes are a table, because mknod requires root.
"""

import struct
from pathlib import Path

from nvdra_cdi.rooted_files import FileInfo, RootedFiles

VERSION = "580.95.05"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_CHARACTER = 0o020000


class SimulatedHost(RootedFiles):
    """The files of a host, with device nodes from a table, as mknod requires root."""

    def __init__(self, root: str, table: dict[str, FileInfo]) -> None:
        super().__init__(root)
        self._table = table

    def subtree(self, path: str) -> "SimulatedHost":
        """The files below a directory."""
        return SimulatedHost(self._real_path(self.resolve(path) or path), self._table)

    def lstat(self, path: str) -> FileInfo | None:
        """The file at the path itself."""
        return self._table.get(self._real_path(path)) or super().lstat(path)


class DriverTree:
    """Creates files, links, libraries and device nodes below a directory that replaces `/`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.nodes: dict[str, FileInfo] = {}

    @property
    def host(self) -> SimulatedHost:
        """The files of the host."""
        return SimulatedHost(str(self.top), self.nodes)

    def file(self, path: str, content: bytes = b"", mode: int = 0o644) -> None:
        """Creates a file."""
        place = self._place(path)
        place.write_bytes(content)
        place.chmod(mode)

    def link(self, path: str, target: str) -> None:
        """Creates a symbolic link."""
        self._place(path).symlink_to(target)

    def directory(self, path: str) -> None:
        """Creates a directory."""
        self._place(path).mkdir()

    def library(self, path: str, soname: str = "") -> None:
        """Creates a shared library."""
        self.file(path, elf_file(soname))

    def node(self, path: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> None:
        """Creates a character device."""
        self.file(path)
        self.nodes[f"{self.top}{path}"] = FileInfo(_CHARACTER | mode, gid, major, minor)

    def remove(self, path: str) -> None:
        """Removes a file."""
        (self.top / path.lstrip("/")).unlink()
        self.nodes.pop(f"{self.top}{path}", None)

    def driver(self, root: str = "") -> None:
        """Creates a minimal driver: two libraries with their links, and nvidia-smi."""
        for name in ("libcuda.so", "libnvidia-ml.so"):
            self.library(f"{root}{LIBRARIES}/{name}.{VERSION}", f"{name}.1")
            self.link(f"{root}{LIBRARIES}/{name}.1", f"{name}.{VERSION}")
        self.file(f"{root}/usr/bin/nvidia-smi", mode=0o755)

    def control_nodes(self, root: str = "", uvm: int = 507) -> None:
        """Creates the nodes that all containers with a GPU get."""
        self.node(f"{root}/dev/nvidiactl", 195, 255)
        self.node(f"{root}/dev/nvidia-modeset", 195, 254)
        self.node(f"{root}/dev/nvidia-uvm", uvm, 0)
        self.node(f"{root}/dev/nvidia-uvm-tools", uvm, 1)

    def _place(self, path: str) -> Path:
        place = self.top / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def elf_file(soname: str, bits: int = 64, order: str = "<") -> bytes:
    """The bytes of a shared library: header, program headers, dynamic table, strings."""
    is_64 = bits == 64
    header_size, entry_size, dynamic_size = (64, 56, 16) if is_64 else (52, 32, 8)
    strings = b"\0" + soname.encode() + b"\0"
    dynamic_at = header_size + 2 * entry_size
    strings_at = dynamic_at + 3 * dynamic_size
    size = strings_at + len(strings)
    base = 0x1000  # the address of the segment, which differs from its file offset
    tags = [(14, 1)] if soname else []
    tags += [(5, base + strings_at), (0, 0)]
    dynamic = b"".join(struct.pack(f"{order}{'qQ' if is_64 else 'iI'}", *tag) for tag in tags)
    ident = b"\x7fELF" + bytes((2 if is_64 else 1, 1 if order == "<" else 2, 1)) + bytes(9)
    if is_64:
        header = struct.pack(f"{order}HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
        segments = struct.pack(f"{order}IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
        segments += struct.pack(
            f"{order}IIQQQQQQ", 2, 4, dynamic_at, base + dynamic_at, 0, len(dynamic), 0, 8
        )
    else:
        header = struct.pack(f"{order}HHIIIIIHHHHHH", 3, 3, 1, 0, 52, 0, 0, 52, 32, 2, 0, 0, 0)
        segments = struct.pack(f"{order}IIIIIIII", 1, 0, base, base, size, size, 5, 0x1000)
        segments += struct.pack(
            f"{order}IIIIIIII", 2, dynamic_at, base + dynamic_at, 0, len(dynamic), 0, 4, 4
        )
    return (ident + header + segments + dynamic).ljust(strings_at, b"\0") + strings
