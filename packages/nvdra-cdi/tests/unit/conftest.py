"""A small driver root of real files; only device nodes are a table, since mknod needs root."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from nvdra_cdi.host import Entry, Host

VERSION = "580.95.05"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_CHARACTER = 0o020000

settings.register_profile("nvdra-cdi", deadline=None)  # a busy machine is no reason to fail
settings.load_profile("nvdra-cdi")


class SimulatedHost(Host):
    """A host whose device nodes are in a table: real path to entry."""

    def __init__(self, root: str, table: dict[str, Entry]) -> None:
        super().__init__(root)
        self._table = table

    def under(self, path: str) -> "SimulatedHost":
        return SimulatedHost(self._real(self.resolve(path) or path), self._table)

    def lstat(self, path: str) -> Entry | None:
        return self._table.get(self._real(path)) or super().lstat(path)


class Tree:
    """Files, links, libraries and device nodes below a directory that stands for `/`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.nodes: dict[str, Entry] = {}

    @property
    def host(self) -> SimulatedHost:
        return SimulatedHost(str(self.top), self.nodes)

    def file(self, path: str, content: bytes = b"", mode: int = 0o644) -> None:
        place = self._place(path)
        place.write_bytes(content)
        place.chmod(mode)

    def link(self, path: str, target: str) -> None:
        self._place(path).symlink_to(target)

    def directory(self, path: str) -> None:
        self._place(path).mkdir()

    def library(self, path: str, soname: str = "") -> None:
        self.file(path, elf_file(soname))

    def node(self, path: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> None:
        self.file(path)
        self.nodes[f"{self.top}{path}"] = Entry(_CHARACTER | mode, gid, major, minor)

    def remove(self, path: str) -> None:
        (self.top / path.lstrip("/")).unlink()
        self.nodes.pop(f"{self.top}{path}", None)

    def driver(self, root: str = "") -> None:
        """The least that counts as a driver: two libraries with their links, and nvidia-smi."""
        for name in ("libcuda.so", "libnvidia-ml.so"):
            self.library(f"{root}{LIBRARIES}/{name}.{VERSION}", f"{name}.1")
            self.link(f"{root}{LIBRARIES}/{name}.1", f"{name}.{VERSION}")
        self.file(f"{root}/usr/bin/nvidia-smi", mode=0o755)

    def control_nodes(self, root: str = "", uvm: int = 507) -> None:
        self.node(f"{root}/dev/nvidiactl", 195, 255)
        self.node(f"{root}/dev/nvidia-modeset", 195, 254)
        self.node(f"{root}/dev/nvidia-uvm", uvm, 0)
        self.node(f"{root}/dev/nvidia-uvm-tools", uvm, 1)

    def _place(self, path: str) -> Path:
        place = self.top / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def elf_file(soname: str, bits: int = 64, order: str = "<") -> bytes:
    """A shared library of one segment: header, program headers, dynamic table, strings."""
    is_64 = bits == 64
    header_size, entry_size, dynamic_size = (64, 56, 16) if is_64 else (52, 32, 8)
    strings = b"\0" + soname.encode() + b"\0"
    dynamic_at = header_size + 2 * entry_size
    strings_at = dynamic_at + 3 * dynamic_size
    size = strings_at + len(strings)
    base = 0x1000  # the segment's address, so that addresses are no file offsets
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


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def golden() -> Path:
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def library() -> Callable[..., bytes]:
    """Makes the bytes of a shared library: `library(soname, bits, order)`."""
    return elf_file
