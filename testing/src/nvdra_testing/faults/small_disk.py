# SPDX-License-Identifier: Apache-2.0
"""A small tmpfs that can be filled or made read-only; it needs root."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SmallDisk:
    """A mounted file system."""

    path: Path

    def fill(self) -> None:
        """Fill the disk completely."""
        with (self.path / "ballast").open("ab", buffering=0) as file:
            for size in (65536, 512, 1):
                with contextlib.suppress(_Full):
                    while True:
                        _append(file.fileno(), size)

    def clear(self) -> None:
        """Make room again."""
        (self.path / "ballast").unlink(missing_ok=True)

    def remount(self, option: str) -> None:
        """Remount as `ro` or `rw`; `ro` fails while a file is open for writing."""
        _run("mount", "-o", f"remount,{option}", str(self.path))


class _Full(Exception):
    pass


@contextlib.contextmanager
def mount_small_disk(path: Path, size: str = "2m") -> Iterator[SmallDisk]:
    """Mount a disk at `path`, which is created if it does not exist, until the block is left."""
    path.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0750", "small-disk", str(path))
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", str(path))


def _append(descriptor: int, size: int) -> None:
    try:
        os.write(descriptor, b"\0" * size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _Full from error


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
