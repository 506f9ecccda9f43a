# SPDX-License-Identifier: Apache-2.0
"""Reads the mounts of this process."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Mount:
    """One mount: its mount point and the type of its file system."""

    point: str
    kind: str


def mount_points() -> set[str]:
    """All mount points of this process."""
    return {mount.point for mount in parse(Path("/proc/self/mountinfo").read_text())}


def mounts_of(*kinds: str) -> list[Mount]:
    """The mounts of these types, in mount order."""
    text = Path("/proc/self/mountinfo").read_text()
    return [mount for mount in parse(text) if mount.kind in kinds]


def parse(mountinfo: str) -> list[Mount]:
    """The mounts of a mountinfo file (proc(5)); the fields after " - " begin with the type."""
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mounts.append(Mount(_unescape(left.split()[4]), right.split()[0]))
    return mounts


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
