"""Socket files: taken only when nobody serves on them, watched while we do.

grpcio unlinks whatever socket it finds before it binds, even one that another process listens on,
and unlinks the path again when it stops (spec/kubelet-dra-protocol.md §8.2); so we look first, and
notice when the file is no longer ours.
"""

import asyncio
import errno
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class SocketID(NamedTuple):
    """Which file a path named when we bound it."""

    device: int
    inode: int


async def claim(path: Path) -> None:
    """Make sure that we may bind this path; a dead socket left by a crash is no obstacle.

    Raises:
        OSError: another process answers there, or the path is no socket.
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
        pass  # a full backlog: somebody listens, and is slow
    else:
        writer.close()
    raise OSError(
        errno.EADDRINUSE,
        "another process serves here; stop the other instance of this driver first",
        str(path),
    )


async def remove_dead(paths: Iterable[Path]) -> None:
    """Remove sockets that nobody serves on any more; leave what is in use, or no socket."""
    for path in paths:
        try:
            await claim(path)
        except OSError:
            continue
        path.unlink(missing_ok=True)


def identify(path: Path) -> SocketID:
    """Which file we have just bound; only root may connect from now on."""
    path.chmod(0o600)
    status = path.lstat()
    return SocketID(status.st_dev, status.st_ino)


def is_ours(path: Path, ours: SocketID) -> bool:
    """Does the path still name the socket that we bound?"""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return SocketID(status.st_dev, status.st_ino) == ours
