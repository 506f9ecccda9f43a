# SPDX-License-Identifier: Apache-2.0
"""The cgroups of a lab: one directory per lab in every hierarchy, and one per machine in it.

A machine sees its own directory as the root (a cgroup namespace), so that everything its kubelet
and
containers create is below it and is removed with the lab. In version 1 each controller has its own
hierarchy. In version 2 there is one, where a directory with processes cannot pass on controllers,
so
the machine's processes are in a leaf.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from nvdra_lab.errors import LabError
from nvdra_lab.machines import filesystems
from nvdra_lab.machines.mounts import mounts_of

CLONE_NEWCGROUP = 0x02000000
LEAF = "machine"
REMOVE_TIMEOUT_S = 10.0


def enter(name: str) -> None:
    """Move this process into the cgroup `name` of every hierarchy, and make it the visible root."""
    hierarchies = list(_hierarchies())
    for hierarchy, is_unified in hierarchies:
        _make(hierarchy, name, is_unified)
        (hierarchy / name / "cgroup.procs").write_text("0")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "no cgroup namespace")
    for hierarchy, is_unified in hierarchies:
        filesystems.bind_mount(str(hierarchy / name), str(hierarchy))
        if is_unified:
            (hierarchy / LEAF).mkdir(exist_ok=True)
            (hierarchy / LEAF / "cgroup.procs").write_text("0")


def remove(name: str) -> None:
    """Kill all processes in the cgroup `name` of every hierarchy, and remove it.

    Raises:
        LabError: A process does not die.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    trees = [hierarchy / name for hierarchy, _ in _hierarchies()]
    while remaining := [tree for tree in trees if not _removed(tree)]:
        _kill_members(remaining)
        if time.monotonic() > deadline:
            raise LabError(f"cgroups are still in use: {', '.join(map(str, remaining))}")
        time.sleep(0.05)


def _hierarchies() -> Iterator[tuple[Path, bool]]:
    """The mount points of hierarchies, and whether each is of version 2."""
    for mount in mounts_of("cgroup", "cgroup2"):
        yield Path(mount.point), mount.kind == "cgroup2"


def _make(hierarchy: Path, name: str, is_unified: bool) -> None:
    place = hierarchy
    for part in Path(name).parts:
        if is_unified:
            _hand_down_controllers(place)
        parent, place = place, place / part
        place.mkdir(exist_ok=True)
        for setting in (
            "cpuset.cpus",
            "cpuset.mems",
        ):  # version 1: processes can enter only when set
            if not is_unified and (place / setting).exists():
                (place / setting).write_text((parent / setting).read_text())


def _hand_down_controllers(place: Path) -> None:
    handed_down = (place / "cgroup.subtree_control").read_text().split()
    for controller in (place / "cgroup.controllers").read_text().split():
        if controller not in handed_down:
            (place / "cgroup.subtree_control").write_text(f"+{controller}")


def _kill_members(trees: list[Path]) -> None:
    for tree in trees:
        for members in tree.rglob("cgroup.procs"):
            for pid in members.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def _removed(tree: Path) -> bool:
    if not tree.is_dir():
        return True
    for below, _, _ in os.walk(tree, topdown=False):
        try:
            Path(below).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
