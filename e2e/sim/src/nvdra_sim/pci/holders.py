# SPDX-License-Identifier: Apache-2.0
"""Which processes have devices of the node open: descriptors and mappings below /proc.

A device is told by the number of its node, in any mount namespace and under any name. `O_PATH`
descriptors count: the simulated programs open devices so, because no driver has their numbers.
What on a real machine is an anonymous inode of vfio, is a memory file with a name here, which
`nvdra-sim-vmm` makes (`vmm/vmm.c`).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvdra_sim.description import DeviceNumber

PROC = Path("/proc")
NO_NODES = ("socket:", "pipe:", "anon_inode:", "/memfd:")
MEMORY_FILE = "/memfd:"
DELETED = " (deleted)"

# Linux, include/uapi/linux/stat.h, `struct statx`.
AT_FDCWD, AT_STATX_DONT_SYNC, STATX_TYPE = -100, 0x4000, 1
STATX_SIZE, STATX_MODE_OFFSET, STATX_RDEV_OFFSET = 256, 28, 128

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Use:
    """One descriptor or mapping.

    Attributes:
        pid: The process, in the PID namespace of the /proc that was read.
        number: The number of a character device; None for all else.
        name: The name of a memory file, or the path of a mapped file; empty for all else.
    """

    pid: int
    number: DeviceNumber | None = None
    name: str = ""


def uses(mapped_paths: Collection[str] = (), proc: Path = PROC) -> Iterator[Use]:
    """All character devices and memory files that processes have open.

    Args:
        mapped_paths: The files whose mappings count, too: a mapping keeps a device in use after
            its descriptor is closed.
        proc: A mounted procfs. Its PID namespace decides which processes are looked at.
    """
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        yield from _descriptors(pid, f"{proc}/{pid}/fd")
        if mapped_paths:
            yield from _mappings(pid, proc / entry.name / "maps", mapped_paths)


def _descriptors(pid: int, directory: str) -> Iterator[Use]:
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:  # the process has ended
        return
    for name in names:
        path = f"{directory}/{name}"
        try:
            target = os.readlink(path)  # noqa: PTH115
            if target.startswith(MEMORY_FILE):
                yield Use(pid, name=target.removeprefix(MEMORY_FILE).removesuffix(DELETED))
            elif not target.startswith(NO_NODES):
                number = _device_number(path)
                if number is not None:
                    yield Use(pid, number)
        except OSError:  # closed meanwhile
            continue


def _mappings(pid: int, file: Path, paths: Collection[str]) -> Iterator[Use]:
    try:
        content = file.read_bytes()
    except OSError:
        return
    if not any(os.fsencode(path) in content for path in paths):  # of nearly all processes
        return
    for line in os.fsdecode(content).splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and path[0] in paths:
            yield Use(pid, name=path[0])


def _device_number(path: str) -> DeviceNumber | None:
    """The number of the character device that a path leads to; None: it is something else.

    Not by `stat`: a descriptor may be a file of the very server that looks, which cannot answer
    itself. `statx` takes what the kernel knows already.
    """
    buffer = ctypes.create_string_buffer(STATX_SIZE)
    if _libc.statx(AT_FDCWD, path.encode(), AT_STATX_DONT_SYNC, STATX_TYPE, buffer) != 0:
        return None
    (mode,) = struct.unpack_from("=H", buffer, STATX_MODE_OFFSET)
    if not stat.S_ISCHR(mode):
        return None
    major, minor = struct.unpack_from("=II", buffer, STATX_RDEV_OFFSET)
    return DeviceNumber(major=major, minor=minor)
