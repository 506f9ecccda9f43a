# SPDX-License-Identifier: Apache-2.0
"""Removes a directory whatever is in it, in passes of bounded work. These calls block.

Containers may have written below it. So nothing here depends on how deep it is, which would take
recursion, nor on how much it holds: a directory in a directory is moved up before it is emptied,
and a pass ends after so many entries or so much time. The next one goes on with what is left.
"""

import errno
import os
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

MAX_ENTRIES: Final = 100_000
_MAX_S: Final = 1.0
"""Of a pass. A disk removes some 80,000 entries in that time."""
_MOVED: Final = "moved-{}"
"""By the number of the inode, which no other directory of the file system has."""
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(directory: Path, last: str, max_entries: int = MAX_ENTRIES) -> bool:
    """Remove a directory, or a part of what is in it.

    Args:
        directory: The directory.
        last: The file in it that is removed last.
        max_entries: The pass ends after so many.

    Returns:
        Whether it is gone.

    Raises:
        OSError: An entry cannot be removed. Others may be left, too.
    """
    until = time.monotonic() + _MAX_S
    try:
        root = os.open(directory, _FLAGS)
    except FileNotFoundError:
        return True
    try:
        with closing(_removals(root, last)) as removals:
            for count, _ in enumerate(removals, 1):
                if count >= max_entries or time.monotonic() >= until:
                    return False
        with suppress(FileNotFoundError):
            os.unlink(last, dir_fd=root)
    finally:
        os.close(root)
    directory.rmdir()
    return True


def _removals(root: int, last: str) -> Generator[None, None, None]:
    """Remove all entries but the last one. Yields after each."""
    is_empty = False
    while not is_empty:
        is_empty = True
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name == last:
                    continue
                is_empty = False
                if entry.is_dir(follow_symlinks=False):
                    yield from _directory_removals(root, entry.name)
                else:
                    os.unlink(entry.name, dir_fd=root)
                yield


def _directory_removals(root: int, name: str) -> Iterator[None]:
    """Remove a directory, and move those in it up. Yields after each entry."""
    directory = os.open(name, _FLAGS, dir_fd=root)
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    moved = _MOVED.format(entry.inode())
                    os.rename(entry.name, moved, src_dir_fd=directory, dst_dir_fd=root)
                else:
                    os.unlink(entry.name, dir_fd=directory)
                yield
    finally:
        os.close(directory)
    try:
        os.rmdir(name, dir_fd=root)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # otherwise it is found again
            raise
