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
    0    unreadable                           at the end, as often as a process could not be read

It imports only what is built into Python or small, so that it starts quickly.
Sources: man 5 proc, `fd`, `fdinfo`, `maps`, `map_files`, `mountinfo`; drivers/vfio/vfio_main.c of
Linux.
"""

import os
import re
import stat
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

VFIO_DEVICE = "anon_inode:[vfio-device]"
"""What the descriptor of a vfio device is called, unless it is a node of /dev/vfio/devices."""

SLOW_FILE_SYSTEMS = frozenset(
    (b"9p", b"afs", b"ceph", b"cifs", b"fuse", b"glusterfs", b"lustre", b"nfs", b"nfs4", b"smb3")
)
"""Those that ask somebody else about a file. No device node is opened there."""

_SHARED_FILE = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) ..[-x]s \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
"""Mappings of devices are shared ones: the driver refuses others."""
_SYSPATH = re.compile(r"^vfio-device-syspath:\s*\S*/(\S+)$", re.MULTILINE)


class Use(NamedTuple):
    """One use of a device by a process.

    Attributes:
        pid: The process, in the PID namespace of the procfs. 0 for one that cannot be read.
        how: `open`, `mapped`, `vfio-device` or `unreadable`.
        number: The device's number, `195:0`; empty for a vfio device without a node.
        name: The path by which the process has it; the PCI address of a vfio device, if the kernel
            says it.
    """

    pid: int
    how: str
    number: str = ""
    name: str = ""


def main() -> None:
    """Print the uses."""
    proc, skip, numbers, names = sys.argv[1:]
    for use in uses(proc, set(skip.split(",")), set(numbers.split(",")), set(names.split(","))):
        fields = (str(use.pid), use.how, use.number, use.name.replace("\n", "?"))
        sys.stdout.buffer.write(os.fsencode("\t".join(fields)) + b"\n")


def uses(
    proc: str, skip: Collection[str], numbers: Collection[str], names: Collection[str]
) -> Iterator[Use]:
    """All uses by all processes. See the arguments of the program."""
    slow: dict[str, tuple[str, ...]] = {}
    devices = {_device(number) for number in numbers if number}
    for name in os.listdir(proc):  # noqa: PTH208 (thousands of entries, as strings)
        if not name.isdecimal() or name in skip:
            continue
        directory = f"{proc}/{name}"
        try:
            yield from _descriptors(int(name), directory, devices, slow)
            yield from _mappings(int(name), directory, devices, names)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except PermissionError:
            yield Use(0, "unreadable")


def _descriptors(
    pid: int, directory: str, devices: Collection[int], slow: dict[str, tuple[str, ...]]
) -> Iterator[Use]:
    mounts: tuple[str, ...] | None = None
    for number in os.listdir(f"{directory}/fd"):  # noqa: PTH208
        path = f"{directory}/fd/{number}"
        try:
            target = os.readlink(path)  # noqa: PTH115
            if target == VFIO_DEVICE:
                yield Use(pid, "vfio-device", name=_address(f"{directory}/fdinfo/{number}"))
            if not target.startswith("/"):
                continue
            if mounts is None:
                mounts = _slow_mounts(directory, slow)
            if mounts and target.startswith(mounts):
                continue
            found = os.stat(path)  # noqa: PTH116
        except OSError:  # closed meanwhile
            continue
        if stat.S_ISCHR(found.st_mode) and found.st_rdev in devices:
            yield Use(pid, "open", _number(found.st_rdev), target)


def _mappings(
    pid: int, directory: str, devices: Collection[int], names: Collection[str]
) -> Iterator[Use]:
    seen = set()
    with open(f"{directory}/maps", "rb") as file:  # noqa: PTH123
        text = file.read()
    for place, mapped in _SHARED_FILE.findall(text):
        path = os.fsdecode(mapped.removesuffix(b" (deleted)"))
        if path in seen:
            continue
        seen.add(path)
        device = _mapped_device(f"{directory}/map_files/{os.fsdecode(place)}")
        if device is not None:
            if device in devices:
                yield Use(pid, "mapped", _number(device), path)
        elif path.rpartition("/dev/")[2] in names:
            yield Use(pid, "mapped", name=path)


def _mapped_device(path: str) -> int | None:
    """The number of the device that is mapped; None if the kernel names no device."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None


def _address(fdinfo: str) -> str:
    try:
        with open(fdinfo, encoding="utf-8") as file:  # noqa: PTH123
            found = _SYSPATH.search(file.read())
    except OSError:
        return ""
    return found[1] if found else ""


def _slow_mounts(directory: str, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The mount points of slow file systems in the mount namespace of a process, with a slash."""
    namespace = os.readlink(f"{directory}/ns/mnt")  # noqa: PTH115
    if namespace not in known:
        with open(f"{directory}/mountinfo", "rb") as file:  # noqa: PTH123
            lines = file.read().splitlines()
        found = []
        for line in lines:
            fields, _, rest = line.partition(b" - ")
            if rest.split(maxsplit=1)[0].partition(b".")[0] in SLOW_FILE_SYSTEMS:
                found.append(f"{os.fsdecode(fields.split()[4])}/")
        known[namespace] = tuple(found)
    return known[namespace]


def _device(number: str) -> int:
    major, _, minor = number.partition(":")
    return os.makedev(int(major), int(minor))


def _number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


if __name__ == "__main__":
    main()
