# SPDX-License-Identifier: Apache-2.0
"""Which processes have devices of the node open: descriptors and mappings below /proc.

A device is told by the number of its node, in any mount namespace and under any name. `O_PATH`
descriptors count: the simulated programs open devices so, because no driver has their numbers.
What on a real machine is an anonymous inode of vfio, is a memory file with a name here, which
`nvdra-sim-vmm` makes (`vmm/vmm.c`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvdra_sim.description import DeviceNumber

PROC = Path("/proc")
NO_NODES = ("socket:", "pipe:", "anon_inode:", "/memfd:")
MEMORY_FILE = "/memfd:"
DELETED = " (deleted)"


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
        names = os.listdir(directory)  # noqa: PTH208: thousands of descriptors, as strings
    except OSError:  # the process has ended
        return
    for name in names:
        path = f"{directory}/{name}"
        try:
            target = os.readlink(path)  # noqa: PTH115
            if target.startswith(MEMORY_FILE):
                yield Use(pid, name=target.removeprefix(MEMORY_FILE).removesuffix(DELETED))
            elif not target.startswith(NO_NODES):
                found = os.stat(path)  # noqa: PTH116
                if stat.S_ISCHR(found.st_mode):
                    yield Use(pid, _number(found.st_rdev))
        except OSError:  # closed meanwhile
            continue


def _mappings(pid: int, file: Path, paths: Collection[str]) -> Iterator[Use]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        path = line.split(maxsplit=5)[5:]
        if path and path[0] in paths:
            yield Use(pid, name=path[0])


def _number(device: int) -> DeviceNumber:
    return DeviceNumber(major=os.major(device), minor=os.minor(device))
