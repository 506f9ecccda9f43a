"""A rooted view of a machine's files: the only way in which discovery looks at the world.

Paths are absolute inside the root, and every symbolic link is followed inside the root too, as
after a chroot: in a driver root, `/usr/lib/libcuda.so.1 -> /opt/nvidia/libcuda.so.1` means the file
below the same root. A link that climbs out of the root leads nowhere (spec/cdi.md §13.4).
"""

import errno
import fnmatch
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nvdra_cdi.errors import DiscoveryError

_MAX_LINKS = 40  # the kernel's limit for one path
_ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))


@dataclass(frozen=True)
class Entry:
    """What a path leads to.

    Attributes:
        mode: File type and permission bits, as in `st_mode`.
        gid: Its group.
        major: Device number, of device nodes.
        minor: Device number, of device nodes.
    """

    mode: int
    gid: int = 0
    major: int = 0
    minor: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_character_device(self) -> bool:
        """Whether it is a character device."""
        return stat.S_ISCHR(self.mode)

    @property
    def is_executable(self) -> bool:
        """Whether it is a regular file that somebody may execute."""
        return stat.S_ISREG(self.mode) and bool(self.mode & 0o111)


class Host:
    """The files below one directory of this machine.

    Args:
        root: The directory that paths start from.

    Every method raises `DiscoveryError` when the system refuses to look; what is not there is None,
    False or empty.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def __str__(self) -> str:
        """The root, as messages name it."""
        return self._root or "/"

    def under(self, path: str) -> "Host":
        """The view that starts at a directory of this one, reached through links if need be."""
        if not self._root:  # the system follows the links of a path of its own, each time anew
            return type(self)(path)
        return type(self)(self._real(self.resolve(path) or path))

    def resolve(self, path: str) -> str | None:
        """Where a path leads when all its links are followed; None when it leads nowhere."""
        rest = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        reached: list[str] = []
        links = 0
        while rest:
            part = rest.pop()
            if part == "..":
                if not reached and self._root:
                    return None
                reached = reached[:-1]
                continue
            here = "/" + "/".join((*reached, part))
            target = self._link_target(here)
            if target is None:
                if self.lstat(here) is None:
                    return None
                reached.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                reached = []
            rest.extend(step for step in reversed(target.split("/")) if step not in ("", "."))
        return "/" + "/".join(reached)

    def readlink(self, path: str) -> str | None:
        """The target as stored, when the path is a link; its directory may be behind links."""
        directory, _, name = path.rpartition("/")
        resolved = self.resolve(directory)
        return None if resolved is None else self._link_target(f"{resolved.rstrip('/')}/{name}")

    def follow(self, path: str) -> tuple[str, Entry] | None:
        """Where a path leads when all its links are followed, and what is there."""
        resolved = self.resolve(path)
        entry = self.lstat(resolved) if resolved is not None else None
        return None if resolved is None or entry is None else (resolved, entry)

    def lstat(self, path: str) -> Entry | None:
        """What is at the path itself; the caller knows that no directory on the way is a link."""
        found = self._lstat(path)
        if found is None:
            return None
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        return Entry(found.st_mode, found.st_gid, major, minor)

    def has(self, path: str) -> bool:
        """Whether something is at the path itself; as for `lstat`, at the price of the call."""
        return self._lstat(path) is not None

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        resolved = self.resolve(directory)
        if resolved is None:
            return []
        try:
            with os.scandir(self._real(resolved)) as entries:
                return sorted(entry.name for entry in entries)
        except OSError as error:
            self._raise_unless_absent(directory, error)
            return []

    def glob(self, directory: str, pattern: str) -> list[str]:
        """The paths in one directory whose names fit a shell pattern, sorted, not resolved."""
        return [
            f"{directory.rstrip('/')}/{name}"
            for name in self.names(directory)
            if fnmatch.fnmatchcase(name, pattern)
        ]

    def open(self, path: str) -> BinaryIO | None:
        """A file to read, links followed; the caller closes it."""
        resolved = self.resolve(path)
        if resolved is None:
            return None
        try:
            return Path(self._real(resolved)).open("rb")
        except OSError as error:
            self._raise_unless_absent(path, error)
            return None

    def read(self, path: str) -> bytes | None:
        """A whole small file, links followed."""
        file = self.open(path)
        if file is None:
            return None
        with file:
            return file.read()

    def kernel_release(self) -> str:
        """The running kernel's release, which firmware directories are named after."""
        return os.uname().release

    def machine(self) -> str:
        """The processor architecture, `x86_64` or `aarch64`."""
        return os.uname().machine

    def _real(self, path: str) -> str:
        return self._root + path if path != "/" else self._root or "/"

    def _lstat(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(self._real(path))
        except OSError as error:
            self._raise_unless_absent(path, error)
            return None

    def _link_target(self, path: str) -> str | None:
        try:
            return os.readlink(self._real(path))  # noqa: PTH115 - pathlib would tidy the target
        except OSError as error:
            if error.errno != errno.EINVAL:
                self._raise_unless_absent(path, error)
            return None

    def _raise_unless_absent(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT:
            raise DiscoveryError(f"cannot read {self._real(path)}: {error.strerror}") from error
