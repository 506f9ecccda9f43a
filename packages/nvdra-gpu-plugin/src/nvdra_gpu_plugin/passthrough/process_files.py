# SPDX-License-Identifier: Apache-2.0
"""A program that finds the processes that have devices open or mapped.

    python -I -S process_files.py PROC SKIP NUMBERS NAMES

It is a program, because a look at another process can block: a descriptor on a network file system
whose server is gone, or the lock of an address space. Then it is killed, and no thread of the
plugin is lost; nor do thousands of system calls take the interpreter's lock from the plugin.

PROC is a mounted procfs, SKIP the processes to leave out, NUMBERS the devices as `195:0`, NAMES the
names of mapped files that count where the kernel does not say what is mapped. Lists are separated
by commas. It says a line for each use, its fields separated by tabs:

    PID  open         195:0  /dev/nvidia0     a descriptor of one of NUMBERS, by any name
    PID  mapped       195:0  /dev/nvidia0     a mapping, which outlives its descriptor
    PID  vfio-device         0000:3b:00.0     the device of a virtual machine; its address on Linux
                                              from 6.18 on, else empty
    0    unreadable                           for each process that cannot be read

It imports only what is built into Python, so that it starts quickly.
Sources: man 5 proc, `fd`, `fdinfo`, `maps`, `map_files`, `mountinfo`; drivers/vfio/vfio_main.c of
Linux.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

VFIO_DEVICE = "anon_inode:[vfio-device]"
"""What the descriptor of a vfio device is called, unless it is a node of /dev/vfio/devices."""
SYSPATH = "vfio-device-syspath:"
NO_DEVICE, UNKNOWN = 0, -1

SLOW_FILE_SYSTEMS = frozenset(
    ("9p", "afs", "ceph", "cifs", "fuse", "glusterfs", "lustre", "nfs", "nfs4", "smb3")
)
"""Those that ask somebody else about a file. No device node is opened there."""


def main() -> None:
    """Print the uses."""
    proc, skip, numbers, names = sys.argv[1:]
    processes = Processes(proc, numbers.split(","), names.split(","))
    for use in processes.uses(skip.split(",")):
        sys.stdout.buffer.write(os.fsencode("\t".join(use).replace("\n", "?")) + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # the interpreter's own end takes as long as its start


class Processes:
    """The processes of a procfs.

    Args:
        proc: As in the arguments of the program, like the others.
    """

    def __init__(self, proc: str, numbers: Collection[str], names: Collection[str]) -> None:
        self._proc = proc
        self._devices = {_device(number) for number in numbers if number}
        self._names = frozenset(names)
        self._slow: dict[str, tuple[str, ...]] = {}
        self._mapped: dict[tuple[bytes, bytes], int] = {}

    def uses(self, skip: Collection[str] = ()) -> Iterator[tuple[str, str, str, str]]:
        """The uses by all processes, with the fields of the program's lines."""
        for pid in os.listdir(self._proc):  # noqa: PTH208 (thousands of entries, as strings)
            if not pid.isdecimal() or pid in skip:
                continue
            try:
                for use in self._uses_of(f"{self._proc}/{pid}"):
                    yield pid, *use
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
            except PermissionError:
                yield "0", "unreadable", "", ""

    def _uses_of(self, process: str) -> Iterator[tuple[str, str, str]]:
        numbers = os.listdir(f"{process}/fd")  # noqa: PTH208
        with open(f"{process}/maps", "rb") as file:  # noqa: PTH123
            maps = file.read()
        if not numbers and not maps:  # a thread of the kernel, or a process that is ending
            return
        slow = self._slow_mounts(process)
        directory = os.open(f"{process}/fd", os.O_RDONLY)  # so that short names do
        try:
            for number in numbers:
                try:
                    target = os.readlink(number, dir_fd=directory)
                    if target == VFIO_DEVICE:
                        yield "vfio-device", "", _address(f"{process}/fdinfo/{number}")
                    if target[0] != "/" or (slow and target.startswith(slow)):
                        continue
                    found = os.stat(number, dir_fd=directory)
                except OSError:  # closed meanwhile
                    continue
                if found.st_rdev in self._devices and stat.S_ISCHR(found.st_mode):
                    yield "open", _number(found.st_rdev), target
        finally:
            os.close(directory)
        yield from self._mappings(process, maps, slow)

    def _mappings(
        self, process: str, maps: bytes, slow: tuple[str, ...]
    ) -> Iterator[tuple[str, str, str]]:
        former, seen = b"", set()
        for line in maps.splitlines():
            start = line.find(b"/")
            name = line[start:]
            if start < 0 or name == former:
                continue
            former = name
            place, _, _, device, inode = line[:start].split()
            path = os.fsdecode(name.removesuffix(b" (deleted)"))
            if slow and path.startswith(slow):
                continue
            key = (device, inode)
            number = self._mapped.get(key)
            if number is None:
                number = _mapped_device(f"{process}/map_files/{os.fsdecode(place)}")
                if number != UNKNOWN:  # or another process may tell
                    self._mapped[key] = number
            is_of_name = number <= 0 and path.rpartition("/dev/")[2] in self._names
            if key not in seen and (number in self._devices or is_of_name):
                seen.add(key)
                yield "mapped", _number(number) if number > 0 else "", path

    def _slow_mounts(self, process: str) -> tuple[str, ...]:
        """The mount points of slow file systems in the process's mount namespace, with a slash."""
        namespace = os.readlink(f"{process}/ns/mnt")  # noqa: PTH115
        if namespace not in self._slow:
            with open(f"{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
                lines = file.read().splitlines()
            found = []
            for line in lines:
                fields, _, rest = line.partition(" - ")
                if rest.split(maxsplit=1)[0].partition(".")[0] in SLOW_FILE_SYSTEMS:
                    found.append(f"{fields.split()[4]}/")
            self._slow[namespace] = tuple(found)
        return self._slow[namespace]


def _mapped_device(path: str) -> int:
    """The number of the device that is mapped; `NO_DEVICE` or `UNKNOWN`."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return UNKNOWN
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else NO_DEVICE


def _address(fdinfo: str) -> str:
    try:
        with open(fdinfo, encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return ""
    paths = (line for line in lines if line.startswith(SYSPATH))
    return next(paths, "").rpartition("/")[2]


def _device(number: str) -> int:
    major, _, minor = number.partition(":")
    return os.makedev(int(major), int(minor))


def _number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


if __name__ == "__main__":
    main()
