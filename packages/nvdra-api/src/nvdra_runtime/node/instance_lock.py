# SPDX-License-Identifier: Apache-2.0
"""The lock that allows one active instance of a driver per node.

Its content names the holder: for people, and for the instances that stand by.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from nvdra_api import json_text
from nvdra_api.errors import PermanentError, Reason

SOCKET: Final = "socket"
"""Key of the holder's DRA socket. Releases before this one do not write it."""


class InstanceLock:
    """A lock that one process per driver and node can hold. The kernel releases it when we end.

    `with InstanceLock(path, {"pid": "1", "pod": "nvdra-gpu-plugin-x7k2p"}):`. It is a `flock`, as
    in the reference driver. The file is never removed: otherwise two processes could lock two files
    of the same name.

    Attributes:
        path: The file.
        holder: What identifies this process, by `pid`, `pod` and `socket` for example.
    """

    def __init__(self, path: Path, holder: Mapping[str, str]) -> None:
        """Create the lock without acquiring it."""
        self.path = path
        self.holder = dict(holder)
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Acquire the lock without waiting, unless it is held already.

        Raises:
            PermanentError: `LockTimeout`: Another process holds it; the message names it.
        """
        if not self.try_acquire():
            raise self._already_held_error()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Acquire the lock. Returns False if another process holds it.

        Raises:
            OSError: The file cannot be opened or locked.
        """
        if self._descriptor < 0:
            descriptor = self._lock_file()
            if descriptor is None:
                return False
            self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock, if it is held."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def read_holder(self) -> Mapping[str, str]:
        """Who holds the lock, or held it last. Empty if the file does not say."""
        with suppress(OSError, ValueError):  # empty or incomplete: the holder has just started
            content = json_text.parse(self.path.read_bytes(), json_text.MAX_FILE_BYTES)
            if isinstance(content, dict):
                return {key: str(value) for key, value in content.items()}
        return {}

    def reacquire_if_replaced(self) -> None:
        """Acquire the lock again if the file or its directory has been removed or replaced.

        After a removal a second process can start. The process that locks the new file first stays.

        Raises:
            PermanentError: `LockTimeout`: The second process was faster, and this one must end.
            OSError: The file cannot be opened or locked.
        """
        try:
            current, ours = self.path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        else:
            if (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino):
                return
        descriptor = self._lock_file()
        if descriptor is None:
            raise self._already_held_error()
        former, self._descriptor = self._descriptor, descriptor
        os.close(former)

    def _lock_file(self) -> int | None:
        """Open and lock the file, and write the holder into it.

        Returns:
            The descriptor; None if another process has locked the file.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(self.holder).encode(), 0)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _already_held_error(self) -> PermanentError:
        who = describe_holder(self.read_holder())
        return PermanentError(
            Reason.LOCK_TIMEOUT,
            f"another instance of this driver runs on this node ({who}) and holds {self.path}",
            "stop it first; a pod that is being replaced ends within its grace period",
            holder=who,
        )


def describe_holder(holder: Mapping[str, str]) -> str:
    """The holder of the lock, for people: `pid 1, pod nvdra-gpu-plugin-x7k2p`."""
    facts = (f"{key} {value}" for key, value in holder.items() if key != SOCKET)
    return ", ".join(facts) or "unknown"
