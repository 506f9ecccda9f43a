# SPDX-License-Identifier: Apache-2.0
"""The part of the FUSE protocol that the server speaks: numbers and structures, as bytes.

Source: Linux, include/uapi/linux/fuse.h, protocol 7.31. All numbers are in the order of this
machine.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from enum import IntEnum

MAJOR, MINOR = 7, 31
MAX_WRITE = 4096  # of one request; what sysfs takes at once, too
READ_BUFFER = 128 * 1024  # the kernel asks for at least 8 KiB
ROOT_NODE = 1


class Opcode(IntEnum):
    """The requests that the server knows; for all others it has no function."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


NO_ANSWER = frozenset({Opcode.FORGET, Opcode.INTERRUPT, Opcode.BATCH_FORGET, Opcode.DESTROY})
ATOMIC_TRUNCATE = 1 << 3  # O_TRUNC is a flag of OPEN, and no request of its own
PARALLEL_DIRECTORIES = 1 << 18
DIRECT_IO = 1  # of an open file: what is read is never kept

_IN_HEADER = struct.Struct("=IIQQIIIHH")
_OUT_HEADER = struct.Struct("=IiQ")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("=QQQQII")
_ATTRIBUTES_HEAD = struct.Struct("=QII")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI7I")
_INIT_IN = struct.Struct("=IIII")
_OPEN_OUT = struct.Struct("=QIi")
_WRITE_IN = struct.Struct("=QQIIQII")
_WRITE_OUT = struct.Struct("=II")
_DIRENT = struct.Struct("=QQII")
_STATFS = struct.Struct("=QQQQQIIII6I")
_FORGET_ONE = struct.Struct("=QQ")


@dataclass(frozen=True)
class Request:
    """A request of the kernel.

    Attributes:
        opcode: A number of `Opcode`, or another one.
        unique: The number by which it is answered.
        node: The node that it is about.
        thread: Who asks, in the PID namespace of the mount; 0: a process outside of it.
        body: What follows the header.
    """

    opcode: int
    unique: int
    node: int
    thread: int
    body: bytes


def parse(message: bytes) -> Request:
    """The request in one read of the device."""
    length, opcode, unique, node, _, _, thread, _, _ = _IN_HEADER.unpack_from(message)
    return Request(opcode, unique, node, thread, message[_IN_HEADER.size : length])


def answer(unique: int, body: bytes = b"") -> bytes:
    """A successful answer."""
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(body), 0, unique) + body


def failure(unique: int, error: int) -> bytes:
    """An answer with an error number."""
    return _OUT_HEADER.pack(_OUT_HEADER.size, -error, unique)


def name_of(body: bytes) -> str:
    """The name that a lookup asks for."""
    return os.fsdecode(body.rstrip(b"\0"))


def init_answer(body: bytes) -> bytes:
    """The answer to the first request: the version, and what the server can do."""
    offered = _INIT_IN.unpack_from(body)[3]
    wanted = (ATOMIC_TRUNCATE | PARALLEL_DIRECTORIES) & offered
    background = 64
    return _INIT_OUT.pack(
        MAJOR, MINOR, 0, wanted, background, background, MAX_WRITE, 1, 1, 0, 0, *([0] * 7)
    )


def entry_answer(node: int, found: os.stat_result, size: int, kept_s: int = 0) -> bytes:
    """The answer to a lookup, which is kept so many seconds; 0: the next one asks again."""
    return _ENTRY.pack(node, 0, kept_s, kept_s, 0, 0) + _attributes(node, found, size)


def attributes_answer(node: int, found: os.stat_result, size: int) -> bytes:
    """The answer to a request for attributes."""
    return _ATTRIBUTES_HEAD.pack(0, 0, 0) + _attributes(node, found, size)


def open_answer() -> bytes:
    """The answer to an open of a file or directory; the server keeps no handles."""
    return _OPEN_OUT.pack(0, DIRECT_IO, 0)


def read_range(body: bytes) -> tuple[int, int]:
    """Offset and size of a read."""
    _, offset, size = struct.unpack_from("=QQI", body)
    return offset, size


def written(body: bytes) -> bytes:
    """The bytes of a write."""
    size = _WRITE_IN.unpack_from(body)[2]
    return body[_WRITE_IN.size : _WRITE_IN.size + size]


def write_answer(size: int) -> bytes:
    """The answer to a write that took so many bytes."""
    return _WRITE_OUT.pack(size, 0)


def directory_entry(number: int, offset: int, name: str, mode: int) -> bytes:
    """One entry of a directory; `offset` is where the next read goes on."""
    raw = os.fsencode(name)
    head = _DIRENT.pack(number, offset, len(raw), stat.S_IFMT(mode) >> 12)
    return (head + raw).ljust(-(-(len(head) + len(raw)) // 8) * 8, b"\0")


def statfs_answer() -> bytes:
    """The answer of a file system without blocks."""
    return _STATFS.pack(0, 0, 0, 0, 0, 4096, 255, 4096, 0, *([0] * 6))


def forgotten(request: Request) -> list[tuple[int, int]]:
    """The nodes that the kernel forgets, each with its number of lookups."""
    if request.opcode == Opcode.FORGET:
        return [(request.node, struct.unpack_from("=Q", request.body)[0])]
    count = struct.unpack_from("=II", request.body)[0]
    return [_FORGET_ONE.unpack_from(request.body, 8 + 16 * place) for place in range(count)]


def _attributes(node: int, found: os.stat_result, size: int) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _ATTRIBUTES.pack(
        *(node, size, 0),
        *(moment // 10**9 for moment in times),
        *(moment % 10**9 for moment in times),
        *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_rdev, 4096, 0),
    )
