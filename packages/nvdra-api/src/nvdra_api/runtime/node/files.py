"""Files that must be whole, and the one that says who runs on this node."""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from nvdra_api.types.errors import PermanentError, Reason


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file so that a reader sees the old or the new content, also after a power cut.

    The temporary file lies beside it, its name starts with a dot. Blocks: two fsyncs.
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
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names that were added to or removed from a directory last."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class InstanceLock:
    """One process per driver and node: held while serving, released by the kernel when we die.

    `with InstanceLock(path, {"pid": "1", "pod": "nvdra-gpu-plugin-x7k2p"}):`. It is a `flock`, as
    the reference takes, on a file that stays: removing it would let two processes hold two files of
    one name. The content is for people and for the message of a second instance.
    """

    def __init__(self, path: Path, holder: Mapping[str, str]) -> None:
        """`holder` says who we are: `pid`, `pod`, whatever finds us."""
        self._path = path
        self._holder = dict(holder)
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Take the lock at once or not at all.

        Raises:
            PermanentError: `LockTimeout`: another process holds it; the message says which.
        """
        self._descriptor = self._locked()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def keep(self) -> None:
        """Take the lock anew where the file has been removed or replaced, its directory too.

        Who removes the file lets a second process in: whoever locks the new file first stays.

        Raises:
            PermanentError: `LockTimeout`: a second process was faster; we have to end.
            OSError: The system refused.
        """
        try:
            there, ours = self._path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        else:
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        former, self._descriptor = self._descriptor, self._locked()
        os.close(former)

    def _locked(self) -> int:
        """The file's descriptor, locked, with our name in the file."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(self._holder).encode(), 0)
        except BlockingIOError as error:
            os.close(descriptor)
            raise self._taken() from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _taken(self) -> PermanentError:
        other: dict[str, str] = {}
        with suppress(OSError, ValueError):  # empty or half written: it has only just started
            other = dict(json.loads(self._path.read_text()))
        who = ", ".join(f"{key} {value}" for key, value in other.items()) or "unknown"
        return PermanentError(
            Reason.LOCK_TIMEOUT,
            f"another instance of this driver runs on this node ({who}) and holds {self._path}",
            "stop it first; a pod that is being replaced ends within its grace period",
            holder=who,
        )
