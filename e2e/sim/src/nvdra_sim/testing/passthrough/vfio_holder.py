# SPDX-License-Identifier: Apache-2.0
"""A program that opens VFIO objects as a virtual machine does, and holds them.

    python -I -S vfio_holder.py status GROUP
    python -I -S vfio_holder.py group GROUP
    python -I -S vfio_holder.py device GROUP ADDRESS

`status` opens the group and ends, `group` holds the group alone, `device` adds the group to a
container and holds the device. It says one line of JSON, and holds until its standard input ends:

    {"viable": true, "failed": null, "errno": null}

`viable` is null if the group cannot be opened. `failed` is the step that failed: `open`,
`container`, `set-container`, `set-iommu` or `device`; the program then exits with 1.

Source of the calls and numbers: include/uapi/linux/vfio.h and Documentation/driver-api/vfio.rst of
Linux. It needs the standard library only.
"""

import errno
import fcntl
import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VFIO_SET_IOMMU = 0x3B66  # _IO(';', 100 + 2)
VFIO_GROUP_GET_STATUS = 0x3B67
VFIO_GROUP_SET_CONTAINER = 0x3B68
VFIO_GROUP_GET_DEVICE_FD = 0x3B6A
TYPE1_IOMMU = 1
VIABLE = 1


class StepError(Exception):
    """A step that failed.

    Args:
        name: The step.
        number: Its errno.
    """

    def __init__(self, name: str, number: int | None) -> None:
        super().__init__(name)
        self.name = name
        self.number = number or 0


def main() -> int:
    """Hold what the arguments say. Returns 1 if a step failed."""
    kind, group, *rest = sys.argv[1:]
    viable: bool | None = None
    try:
        with step("open"):
            group_fd = os.open(f"/dev/vfio/{group}", os.O_RDWR)
        viable = is_viable(group_fd)
        if kind == "device":
            open_device(group_fd, rest[0])
    except StepError as error:
        say(viable, error.name, errno.errorcode[error.number])
        return 1
    say(viable, None, None)
    if kind != "status":
        sys.stdin.read()
    return 0


def is_viable(group_fd: int) -> bool:
    """Whether no function of the group is on a driver of the host."""
    status = bytearray(struct.pack("II", 8, 0))
    fcntl.ioctl(group_fd, VFIO_GROUP_GET_STATUS, status)
    _, flags = struct.unpack("II", status)
    return bool(flags & VIABLE)


def open_device(group_fd: int, address: str) -> int:
    """The descriptor of the device, which stays open until the process ends."""
    with step("container"):
        container = os.open("/dev/vfio/vfio", os.O_RDWR)
    with step("set-container"):
        fcntl.ioctl(group_fd, VFIO_GROUP_SET_CONTAINER, struct.pack("i", container))
    with step("set-iommu"):
        fcntl.ioctl(container, VFIO_SET_IOMMU, TYPE1_IOMMU)
    with step("device"):
        # With a bytearray, Python returns what the call returns: the descriptor.
        return fcntl.ioctl(group_fd, VFIO_GROUP_GET_DEVICE_FD, bytearray(address.encode() + b"\0"))


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name the step that fails in the block."""
    try:
        yield
    except OSError as error:
        raise StepError(name, error.errno) from error


def say(viable: bool | None, failed: str | None, number: str | None) -> None:
    """Print the line."""
    print(json.dumps({"viable": viable, "failed": failed, "errno": number}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
