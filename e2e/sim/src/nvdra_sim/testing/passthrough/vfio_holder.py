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
Linux. It imports what is built into Python only: every other import takes a quarter of a second on
an emulated processor.
"""

import errno
import fcntl
import os
import struct
import sys

VFIO_SET_IOMMU = 0x3B66  # _IO(';', 100 + 2)
VFIO_GROUP_GET_STATUS = 0x3B67
VFIO_GROUP_SET_CONTAINER = 0x3B68
VFIO_GROUP_GET_DEVICE_FD = 0x3B6A
TYPE1_IOMMU = 1
VIABLE = 1


def main() -> int:
    """Hold what the arguments say. Returns 1 if a step failed."""
    kind, group, *rest = sys.argv[1:]
    viable: bool | None = None
    step = "open"
    try:
        group_fd = os.open(f"/dev/vfio/{group}", os.O_RDWR)
        viable = is_viable(group_fd)
        if kind == "device":
            step = "container"
            container_fd = os.open("/dev/vfio/vfio", os.O_RDWR)
            step = "set-container"
            fcntl.ioctl(group_fd, VFIO_GROUP_SET_CONTAINER, struct.pack("i", container_fd))
            step = "set-iommu"
            fcntl.ioctl(container_fd, VFIO_SET_IOMMU, TYPE1_IOMMU)
            step = "device"
            # The descriptor that it returns stays open until the process ends.
            fcntl.ioctl(group_fd, VFIO_GROUP_GET_DEVICE_FD, rest[0].encode() + b"\0")
    except OSError as error:
        say(viable, f'"{step}"', f'"{errno.errorcode[error.errno or 0]}"')
        return 1
    say(viable, "null", "null")
    if kind != "status":
        sys.stdin.read()
    return 0


def is_viable(group_fd: int) -> bool:
    """Whether no function of the group is on a driver of the host."""
    status = bytearray(struct.pack("II", 8, 0))
    fcntl.ioctl(group_fd, VFIO_GROUP_GET_STATUS, status)
    _, flags = struct.unpack("II", status)
    return bool(flags & VIABLE)


def say(viable: bool | None, failed: str, number: str) -> None:
    """Print the line. The other arguments are JSON."""
    shown = "null" if viable is None else str(viable).lower()
    print(f'{{"viable": {shown}, "failed": {failed}, "errno": {number}}}', flush=True)


if __name__ == "__main__":
    sys.exit(main())
