# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

_TEMPORARY: Final = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}")


def write_atomic(path: Path, data: bytes, mode: int = 0o644, *, is_synced: bool = True) -> None:
    """Replace a file atomically: a reader sees the old or the new content.

    The temporary file is in the same directory, and its name starts with a dot.

    Args:
        path: The file.
        data: Its new content.
        mode: Its permissions.
        is_synced: Whether that is so even if the power fails; it costs two fsyncs. Otherwise the
            file may be empty or the old one afterwards.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if is_synced:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if is_synced:
        fsync_directory(path.parent)


def remove_temporary_files(directory: Path, names: Collection[str]) -> None:
    """Remove the temporary files that killed writers of these files have left in a directory.

    A writer of one of them fails with FileNotFoundError.

    Raises:
        OSError: The directory cannot be read, or a file cannot be removed.
    """
    for path in directory.iterdir():
        found = _TEMPORARY.fullmatch(path.name)
        if found and found["name"] in names:
            path.unlink(missing_ok=True)


def fsync_directory(path: Path) -> None:
    """Write added and removed names of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
