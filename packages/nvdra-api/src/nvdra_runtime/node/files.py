"""Atomic file writes, and the lock that allows one instance of a driver per node."""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from nvdra_api.errors import PermanentError, Reason


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file atomically, even if the power fails: a reader sees the old or the new content.

    The temporary file is in the same directory, and its name starts with a dot. Blocks for two
    fsyncs.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Write added and removed names of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class InstanceLock:
    """A lock that allows one process per driver and node. The kernel releases it when we end.

    `with InstanceLock(path, {"pid": "1", "pod": "nvdra-gpu-plugin-x7k2p"}):`. It is a `flock`, as
    in the reference driver. The file is never removed: otherwise two processes could lock two files
    of the same name. Its content is for people and for the error message of a second instance.
    """

    def __init__(self, path: Path, holder: Mapping[str, str]) -> None:
        """Create the lock. `holder` identifies this process, by `pid` and `pod` for example."""
        self._path = path
        self._holder = dict(holder)
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Acquire the lock without waiting.

        Raises:
            PermanentError: `LockTimeout`: Another process holds it; the message names it.
        """
        self._descriptor = self._lock_file()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def reacquire_if_replaced(self) -> None:
        """Acquire the lock again if the file or its directory has been removed or replaced.

        After a removal a second process can start. The process that locks the new file first stays.

        Raises:
            PermanentError: `LockTimeout`: The second process was faster, and this one must end.
            OSError: The file cannot be opened or locked.
        """
        try:
            current, ours = self._path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        else:
            if (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino):
                return
        former, self._descriptor = self._descriptor, self._lock_file()
        os.close(former)

    def _lock_file(self) -> int:
        """Open and lock the file, and write the holder into it. Returns the descriptor."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(self._holder).encode(), 0)
        except BlockingIOError as error:
            os.close(descriptor)
            raise self._already_held_error() from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _already_held_error(self) -> PermanentError:
        other: dict[str, str] = {}
        with suppress(OSError, ValueError):  # empty or incomplete: the holder has just started
            other = dict(json.loads(self._path.read_text()))
        who = ", ".join(f"{key} {value}" for key, value in other.items()) or "unknown"
        return PermanentError(
            Reason.LOCK_TIMEOUT,
            f"another instance of this driver runs on this node ({who}) and holds {self._path}",
            "stop it first; a pod that is being replaced ends within its grace period",
            holder=who,
        )
