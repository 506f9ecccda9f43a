"""File trees as values, and the one place that writes and removes them.

A `Tree` maps relative paths to what shall be there; parents are implied. What goes into the trees
is `driverroot`, `procfs`, `sysfs` and `devices`. Writing is idempotent, keeps what is already
right, and refuses to touch a file that it did not make.
"""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile

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
    """A symbolic link with this text."""

    target: str


@dataclass(frozen=True)
class Socket:
    """The inode of a Unix socket; nobody listens."""

    mode: int = 0o666


@dataclass(frozen=True)
class Node:
    """A character device. Making one needs CAP_MKNOD."""

    device: DeviceNumber
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


Entry = Directory | File | Copy | Link | Socket | Node
Tree = Mapping[str, Entry]


class ForeignFileError(FileExistsError):
    """Something that we did not make is in the way."""


def text(content: str, mode: int = 0o644) -> File:
    """A file with this text and a newline at its end, as the kernel writes them."""
    return File(f"{content}\n".encode(), mode)


def plan(tree: Tree, root: Path, owned: Collection[Path] = ()) -> list[Path]:
    """The paths that will be ours once the tree is written, parents before children.

    Args:
        tree: What shall be there.
        root: Where.
        owned: What an earlier plan returned. Only these may be replaced.

    Raises:
        ForeignFileError: A path exists, differs from what is wanted, and is not in `owned`.
    """
    ours: dict[Path, None] = {}
    for path, entry in _in_order(tree):
        target = root / path
        will_move = False
        for parent in reversed(target.parents):
            # Below a link of ours that becomes a directory, what is seen now is elsewhere.
            if will_move or parent in owned or not _exists(parent):
                ours[parent] = None
                will_move |= _must_become_directory(parent, owned)
            elif not parent.is_dir():
                raise _in_the_way(parent)
        if will_move or target in owned or not _exists(target):
            ours[target] = None
        elif not _is(target, entry):
            raise _in_the_way(target)
    return list(ours)


def write(tree: Tree, root: Path, owned: Collection[Path] = ()) -> None:
    """Makes `root` hold the tree, replacing what differs; `plan` has said that it may.

    Raises:
        PermissionError: A device node without the right to make one.
    """
    for path, entry in _in_order(tree):
        target = root / path
        for parent in reversed(target.parents):
            if _must_become_directory(parent, owned):
                parent.unlink(missing_ok=True)
                parent.mkdir()
        if not _is(target, entry):
            _clear(target)
            _make(target, entry)


def paths(tree: Tree, root: Path) -> list[Path]:
    """Everything in the tree and the directories that it implies, parents before children."""
    found: dict[Path, None] = {}
    for path in sorted(tree):
        parents = [parent for parent in PurePosixPath(path).parents if parent.name]
        for part in (*reversed(parents), PurePosixPath(path)):
            found[root / part] = None
    return list(found)


def remove(owned: Collection[Path]) -> None:
    """Removes what a plan named. A directory that others put something into stays."""
    for path in reversed(list(owned)):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)


def _must_become_directory(parent: Path, owned: Collection[Path]) -> bool:
    """No directory yet; a link to one counts as one unless it is ours, from another tree."""
    return not parent.is_dir() or (parent in owned and parent.is_symlink())


def _in_the_way(path: Path) -> ForeignFileError:
    return ForeignFileError(f"{path} is in the way, and the simulator did not make it")


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _in_order(tree: Tree) -> Iterator[tuple[PurePosixPath, Entry]]:
    for path in sorted(tree):
        yield PurePosixPath(path), tree[path]


def _is(path: Path, entry: Entry) -> bool:
    """Is exactly this there already?"""
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


def _make(path: Path, entry: Entry) -> None:
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
    """By rename, so that a process that has the old file mapped keeps it."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
        new.write(content)
    os.chmod(new.name, mode)  # noqa: PTH101 - the temporary file's name is a string
    Path(new.name).replace(path)
