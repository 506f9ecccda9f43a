# SPDX-License-Identifier: Apache-2.0
"""The kernel's limits of inotify, which the nodes of all labs share with everything else here.

The kernel counts instances and watches per user. Debian's 128 instances are enough for about
thirteen nodes; whoever gets none does not say so plainly: a kubelet ends, a pod hangs. Measured
with Kubernetes 1.36: a kubelet has 6 instances and 80 watches, a containerd 2 and 2, the control
plane 16 and 25 in all.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from nvdra_lab.errors import LabError

PROC = Path("/proc")


@dataclasses.dataclass(frozen=True)
class Limit:
    """One of the kernel's limits, and what a lab needs of it.

    Attributes:
        path: Below /proc/sys.
        control_plane: For the control plane.
        node: For each node, with the driver's plugins and some pods.
        spare: What is left for others, such as labs that start at the same time: each counts only
            what is there already. Twice the kernel's default of instances.
    """

    path: str
    control_plane: int
    node: int
    spare: int

    @property
    def sysctl(self) -> str:
        """Its name for `sysctl`."""
        return self.path.replace("/", ".")


INSTANCES = Limit("fs/inotify/max_user_instances", control_plane=16, node=10, spare=256)
WATCHES = Limit("fs/inotify/max_user_watches", control_plane=64, node=512, spare=8192)
LIMITS = (INSTANCES, WATCHES)


def check(node_count: int, proc: Path = PROC) -> None:
    """Check that the limits are high enough for a new lab or can be raised. Changes nothing.

    Raises:
        LabError: A limit is too low and cannot be changed here; it says what to set.
    """
    for limit, current, needed in _needs(node_count, proc):
        if current >= needed:
            continue
        path = proc / "sys" / limit.path
        try:
            path.write_text(str(current))
        except OSError as error:
            raise LabError(
                f"{node_count} nodes need {limit.sysctl} to be {needed} or more; it is {current}, "
                f"and lab cannot change it here ({error.strerror}). On the host: "
                f"sysctl -w {limit.sysctl}={needed + limit.spare}; or start fewer nodes"
            ) from error


def raise_limits(node_count: int, proc: Path = PROC) -> None:
    """Raise the limits that leave too little beside a new lab. `kernel.restore` sets them back.

    Where they cannot be changed, what `check` has let pass is enough for this lab.
    """
    for limit, current, needed in _needs(node_count, proc):
        if current < needed + limit.spare:
            with contextlib.suppress(OSError):
                (proc / "sys" / limit.path).write_text(str(needed + limit.spare))


def _needs(node_count: int, proc: Path) -> Iterator[tuple[Limit, int, int]]:
    """Each limit with its current value and the one that a new lab needs."""
    used = _in_use(proc)
    for limit in LIMITS:
        path = proc / "sys" / limit.path
        if not path.exists():
            continue  # a kernel without inotify, or without this limit
        needed = used[limit] + limit.control_plane + limit.node * node_count
        yield limit, int(path.read_text()), needed


def _in_use(proc: Path) -> dict[Limit, int]:
    """What root's processes have, an instance that two of them share counted twice."""
    used = dict.fromkeys(LIMITS, 0)
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if process.stat().st_uid:
                continue
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) == "anon_inode:inotify":
                    said = (process / "fdinfo" / descriptor.name).read_text()
                    used[INSTANCES] += 1
                    used[WATCHES] += said.count("\ninotify ") + said.startswith("inotify ")
    return used
