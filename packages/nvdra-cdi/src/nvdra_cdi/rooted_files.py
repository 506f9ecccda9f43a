# SPDX-License-Identifier: Apache-2.0
"""Access to the files below a root directory. Discovery reads files only through this module.

Paths are absolute within the root, and symbolic links are followed within the root, as after a
chroot: in a driver root, `/usr/lib/libcuda.so.1 -> /opt/nvidia/libcuda.so.1` refers to a file in
the same root. A link that leaves the root is treated as broken (docs/reference/cdi.md §13.4).
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
class FileInfo:
    """The type, permissions, group and device number of a file.

    Attributes:
        mode: The file type and permission bits, as in `st_mode`.
        gid: The group.
        major: The major device number of a device node.
        minor: The minor device number of a device node.
    """

    mode: int
    gid: int = 0
    major: int = 0
    minor: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether the file is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_character_device(self) -> bool:
        """Whether the file is a character device."""
        return stat.S_ISCHR(self.mode)

    @property
    def is_executable(self) -> bool:
        """Whether the file is a regular file with an execute permission."""
        return stat.S_ISREG(self.mode) and bool(self.mode & 0o111)


class RootedFiles:
    """The files below a directory of this machine.

    All methods raise `DiscoveryError` if the system denies access. They return None, False or an
    empty result for files that do not exist, also if no file can have the path: if it contains a
    NUL or is not text.

    Args:
        root: The directory that is the root of all paths.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def __str__(self) -> str:
        """The root directory, for messages."""
        return self._root or "/"

    def subtree(self, path: str) -> "RootedFiles":
        """The files below a directory of this root. Links in its path are followed."""
        if not self._root:  # without a root, the system itself follows links, at each access
            return type(self)(path)
        return type(self)(self._real_path(self.resolve(path) or path))

    def resolve(self, path: str) -> str | None:
        """The path with all links resolved, or None if the file does not exist."""
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
        """The target of a link as stored, or None. Links in its directory are resolved."""
        directory, _, name = path.rpartition("/")
        resolved = self.resolve(directory)
        return None if resolved is None else self._link_target(f"{resolved.rstrip('/')}/{name}")

    def follow(self, path: str) -> tuple[str, FileInfo] | None:
        """The resolved path and its file, or None if the file does not exist."""
        resolved = self.resolve(path)
        entry = self.lstat(resolved) if resolved is not None else None
        return None if resolved is None or entry is None else (resolved, entry)

    def lstat(self, path: str) -> FileInfo | None:
        """The file at the path itself. No directory in the path may be a link."""
        found = self._lstat(path)
        if found is None:
            return None
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        return FileInfo(found.st_mode, found.st_gid, major, minor)

    def lexists(self, path: str) -> bool:
        """Whether the path exists, like `lstat` but cheaper. A broken link exists."""
        return self._lstat(path) is not None

    def listdir(self, directory: str) -> list[str]:
        """The names in a directory, sorted. Links in its path are resolved."""
        resolved = self.resolve(directory)
        if resolved is None:
            return []
        try:
            with os.scandir(self._real_path(resolved)) as entries:
                return sorted(entry.name for entry in entries)
        except OSError as error:
            self._raise_unless_absent(directory, error)
            return []

    def glob(self, directory: str, pattern: str) -> list[str]:
        """The paths in a directory whose names match a shell pattern, sorted, not resolved."""
        return [
            f"{directory.rstrip('/')}/{name}"
            for name in self.listdir(directory)
            if fnmatch.fnmatchcase(name, pattern)
        ]

    def open(self, path: str) -> BinaryIO | None:
        """Open a file for reading, following links. The caller closes it."""
        resolved = self.resolve(path)
        if resolved is None:
            return None
        try:
            return Path(self._real_path(resolved)).open("rb")
        except OSError as error:
            self._raise_unless_absent(path, error)
            return None

    def read(self, path: str) -> bytes | None:
        """The content of a small file, following links."""
        file = self.open(path)
        if file is None:
            return None
        try:
            with file:
                return file.read()
        except OSError as error:
            self._raise_unless_absent(path, error)
            return None

    def kernel_release(self) -> str:
        """The release of the running kernel, which is in the names of firmware directories."""
        return os.uname().release

    def machine(self) -> str:
        """The processor architecture, `x86_64` or `aarch64`."""
        return os.uname().machine

    def _real_path(self, path: str) -> str:
        return self._root + path if path != "/" else self._root or "/"

    def _lstat(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(self._real_path(path))
        except OSError as error:
            self._raise_unless_absent(path, error)
            return None
        except ValueError:  # the path contains a NUL or cannot be encoded
            return None

    def _link_target(self, path: str) -> str | None:
        try:
            return os.readlink(self._real_path(path))  # noqa: PTH115 - pathlib would normalize it
        except OSError as error:
            if error.errno != errno.EINVAL:
                self._raise_unless_absent(path, error)
            return None
        except ValueError:  # as in `_lstat`
            return None

    def _raise_unless_absent(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT:
            raise DiscoveryError(
                f"cannot read {self._real_path(path)}: {error.strerror}"
            ) from error
