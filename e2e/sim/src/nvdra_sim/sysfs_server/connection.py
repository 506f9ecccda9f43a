# SPDX-License-Identifier: Apache-2.0
"""Mounts, and connections to the kernel: making them, finding them, ending them.

The server mounts by itself, as root, and needs no library: with libfuse, each file is one inode,
and a write that waits would keep all others from it (docs/decisions/simulator.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

DEVICE = Path("/dev/fuse")
CONNECTIONS = Path("/sys/fs/fuse/connections")
MOUNTS = Path("/proc/self/mountinfo")
SOURCE = "nvdra-sim-sysfs"
MS_NOSUID, MS_NODEV = 2, 4
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def mount(target: Path) -> int:
    """Mounts a file system that this process answers for, and returns its descriptor.

    Raises:
        OSError: There is no /dev/fuse, no directory at `target`, or no right to mount.
    """
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = stat.S_IFDIR | 0o755
    options = f"fd={device},rootmode={kind:o},user_id=0,group_id=0,allow_other,default_permissions"
    try:
        _mount(SOURCE, target, "fuse", MS_NOSUID | MS_NODEV, options)
    except OSError:
        os.close(device)
        raise
    return device


def unmount(target: Path) -> None:
    """Takes the mount away from its directory; files that are open stay so. Raises OSError."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def number(target: Path) -> int | None:
    """The number of the connection that is mounted at `target`; None: none is.

    Not by `stat`, which the server would have to answer, whatever state it is in.
    """
    wanted = str(target.absolute())
    for line in reversed(MOUNTS.read_text(encoding="utf-8").splitlines()):
        fields = line.split()
        if fields[4] == wanted and SOURCE in fields[fields.index("-") :]:
            return int(fields[2].partition(":")[2])
    return None


def abort(target: Path) -> bool:
    """Ends a connection whatever its server does, and takes the mount away.

    All processes that wait for an answer get an error, so that none stays in the kernel.

    Returns:
        Whether there was such a mount.
    """
    found = number(target)
    if found is None:
        return False
    with _connections() as directory, contextlib.suppress(FileNotFoundError):
        (directory / str(found) / "abort").write_text("1", encoding="ascii")
    try:
        unmount(target)
    except OSError:
        if number(target) is not None:  # else its server has noticed the end, and was first
            raise
    return True


@contextlib.contextmanager
def _connections() -> Iterator[Path]:
    """The file system with one directory per connection, mounted for the while if it is not."""
    if any(CONNECTIONS.iterdir() if CONNECTIONS.is_dir() else ()):
        yield CONNECTIONS
        return
    with tempfile.TemporaryDirectory() as place:
        _mount("fusectl", Path(place), "fusectl", 0, "")
        try:
            yield Path(place)
        finally:
            unmount(Path(place))


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    done = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, options.encode())
    _check(done, target)


def _check(done: int, target: Path) -> None:
    if done != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(target))
