# SPDX-License-Identifier: Apache-2.0
"""File trees as values, and functions that write and remove them.

A `Tree` maps relative paths to entries; parent directories are implied. The modules `driver_root`,
`procfs`, `sysfs` and `device_nodes` create trees. Writing is idempotent, does not touch correct
files, and refuses to change a file that the simulator did not create.
"""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

from nvdra_sim.description import DeviceNumber


@dataclass(frozen=True)
class Directory:
    """A directory that exists even when empty."""

    mode: int = 0o755


@dataclass(frozen=True)
class File:
    """A regular file with this content."""

    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Copy:
    """A regular file with the content of another one."""

    source: Path
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    """A symbolic link with this target."""

    target: str


@dataclass(frozen=True)
class Socket:
    """A Unix socket without a listener."""

    mode: int = 0o666


@dataclass(frozen=True)
class Node:
    """A character device. Creating it requires CAP_MKNOD."""

    device: DeviceNumber
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


Entry = Directory | File | Copy | Link | Socket | Node
Tree = Mapping[str, Entry]


class ForeignFileError(FileExistsError):
    """A file exists that the simulator did not create."""


def text(content: str, mode: int = 0o644) -> File:
    """A file with this text and a final newline, as the kernel writes them."""
    return File(f"{content}\n".encode(), mode)


def plan(tree: Tree, root: Path, owned: Collection[Path] = ()) -> list[Path]:
    """The paths that writing the tree creates or replaces, parents before children.

    Args:
        tree: The tree.
        root: The directory to write to.
        owned: The result of an earlier plan. Only these paths may be replaced.

    Raises:
        ForeignFileError: A path exists, differs from its entry, and is not in `owned`.
    """
    ours: dict[Path, None] = {}
    below_is_elsewhere: dict[Path, bool] = {}
    for path, entry in _in_order(tree):
        target = root / path
        for parent in _parents_not_in(below_is_elsewhere, target):
            # If an owned link becomes a directory, the files that exist below it are elsewhere.
            is_elsewhere = below_is_elsewhere.get(parent.parent, False)
            if is_elsewhere or parent in owned or not _exists(parent):
                ours[parent] = None
                is_elsewhere |= _must_become_directory(parent, owned)
            elif not parent.is_dir():
                raise _foreign_file_error(parent)
            below_is_elsewhere[parent] = is_elsewhere
        if below_is_elsewhere[target.parent] or target in owned or not _exists(target):
            ours[target] = None
        elif not _matches(target, entry):
            raise _foreign_file_error(target)
    return list(ours)


def write(tree: Tree, root: Path, owned: Collection[Path] = ()) -> None:
    """Writes the tree to `root` and replaces differing files. Call `plan` first.

    Raises:
        PermissionError: The process may not create device nodes.
    """
    seen: set[Path] = set()
    for path, entry in _in_order(tree):
        target = root / path
        for parent in _parents_not_in(seen, target):
            if _must_become_directory(parent, owned):
                parent.unlink(missing_ok=True)
                parent.mkdir()
            seen.add(parent)
        if not _matches(target, entry):
            _delete(target)
            _create(target, entry)


def paths(tree: Tree, root: Path) -> list[Path]:
    """All paths of the tree, including parent directories, parents before children."""
    return [root / path for path in relative_paths(tree)]


def relative_paths(tree: Iterable[str]) -> list[str]:
    """The same, relative to the root of the tree."""
    found: dict[str, None] = {}
    for path in sorted(tree):
        parts = path.split("/")
        found |= dict.fromkeys("/".join(parts[: at + 1]) for at in range(len(parts)))
    return list(found)


def remove(owned: Collection[Path]) -> None:
    """Removes the paths of a plan. Directories that contain other files are kept."""
    for path in reversed(list(owned)):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)


def _parents_not_in(seen: Container[Path], path: Path) -> list[Path]:
    """The parents of a path that were not seen, outermost first; of a seen one, all were."""
    return list(takewhile(lambda parent: parent not in seen, path.parents))[::-1]


def _must_become_directory(parent: Path, owned: Collection[Path]) -> bool:
    """Whether the path is not a directory, or an owned link from another tree."""
    return not parent.is_dir() or (parent in owned and parent.is_symlink())


def _foreign_file_error(path: Path) -> ForeignFileError:
    return ForeignFileError(f"{path} exists, and the simulator did not create it")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _in_order(tree: Tree) -> Iterator[tuple[PurePosixPath, Entry]]:
    for path in sorted(tree):
        yield PurePosixPath(path), tree[path]


def _matches(path: Path, entry: Entry) -> bool:
    """Whether the path already has this type, content, mode and owner."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    kind, mode = stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode)
    match entry:
        case Link(target):
            return kind == stat.S_IFLNK and str(path.readlink()) == target
        case File(content, wanted):
            return kind == stat.S_IFREG and mode == wanted and path.read_bytes() == content
        case Copy(source, wanted):
            return (
                kind == stat.S_IFREG and mode == wanted and filecmp.cmp(path, source, shallow=False)
            )
        case Socket(wanted):
            return kind == stat.S_IFSOCK and mode == wanted
        case Node(device, wanted, uid, gid):
            number = DeviceNumber(major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))
            owner = found.st_uid, found.st_gid
            return kind == stat.S_IFCHR and (number, mode, owner) == (device, wanted, (uid, gid))
        case Directory():
            return kind == stat.S_IFDIR


def _create(path: Path, entry: Entry) -> None:
    match entry:
        case Link(target):
            path.symlink_to(target)
        case File(content, mode):
            _write_file(path, content, mode)
        case Copy(source, mode):
            _write_file(path, source.read_bytes(), mode)
        case Socket(mode):
            os.mknod(path, stat.S_IFSOCK)
            path.chmod(mode)
        case Node(device, mode, uid, gid):
            os.mknod(path, stat.S_IFCHR, os.makedev(device.major, device.minor))
            path.chmod(mode)
            os.chown(path, uid, gid)
        case Directory(mode):
            path.mkdir()
            path.chmod(mode)


def _write_file(path: Path, content: bytes, mode: int) -> None:
    """Writes a new file; processes that have a former one mapped keep that."""
    with path.open("xb") as new:
        new.write(content)
    path.chmod(mode)
