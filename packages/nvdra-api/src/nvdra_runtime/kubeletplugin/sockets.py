# SPDX-License-Identifier: Apache-2.0
"""Checks socket files: before a server binds them, and while it serves.

Before grpcio binds a path, it unlinks any socket there, even one that another process serves on,
and when it stops, it unlinks the path again (docs/reference/kubelet-plugin.md, "Socket files").
Therefore the path is checked first, and it is noticed when the socket is replaced.
"""

import asyncio
import errno
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class SocketID(NamedTuple):
    """Identity of a socket file."""

    device: int
    inode: int


async def check_available(path: Path) -> None:
    """Check that the path may be bound. A socket that a killed process has left is no obstacle.

    Raises:
        OSError: Another process serves there, or the path is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EADDRINUSE, "a file that is not a socket is in the way", str(path))
    try:
        async with asyncio.timeout(1):
            _, writer = await asyncio.open_unix_connection(str(path))
    except (ConnectionRefusedError, FileNotFoundError):
        return
    except TimeoutError:
        pass  # the backlog is full: a process listens and is slow
    else:
        writer.close()
    raise OSError(
        errno.EADDRINUSE,
        "another process serves here; stop the other instance of this driver first",
        str(path),
    )


async def remove_dead(paths: Iterable[Path]) -> None:
    """Remove sockets that no process serves on. Leave all other files."""
    for path in paths:
        try:
            await check_available(path)
        except OSError:
            continue
        path.unlink(missing_ok=True)


def restrict_and_identify(path: Path) -> SocketID:
    """Let only root connect to a socket that was just bound, and return its identity."""
    path.chmod(0o600)
    status = path.lstat()
    return SocketID(status.st_dev, status.st_ino)


def is_ours(path: Path, ours: SocketID) -> bool:
    """Whether the path is still the socket that was bound.

    Raises:
        OSError: It cannot be found out.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return SocketID(status.st_dev, status.st_ino) == ours
