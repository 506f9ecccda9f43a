# SPDX-License-Identifier: Apache-2.0
"""The instances of a plugin on a node of a lab: their processes and registration sockets.

They are read from outside, through the first process of the node, so that looking costs the node
nothing and can be done many times a second.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nvdra_testing import background
from nvdra_testing.cluster import lab_command, workloads
from nvdra_testing.cluster.installation import Cluster, Component

REGISTRY = Path("var/lib/kubelet/plugins_registry")
POLL_S = 0.01
"""How often the directory is read: short compared with a kubelet's reaction."""


def sockets(cluster: Cluster, component: Component, node: str) -> frozenset[str]:
    """The names of the registration sockets of a driver on a node."""
    root = Path(f"/proc/{cluster.lab.init_pid(node)}/root")
    names = (file.name for file in (root / REGISTRY).iterdir())
    return frozenset(name for name in names if name.startswith(component.driver))


def pods(cluster: Cluster, component: Component, node: str) -> dict[str, str]:
    """The pods of a plugin on a node that are not being deleted: UID → name, oldest first."""
    chosen = ["-l", component.label, f"--field-selector=spec.nodeName={node}"]
    found = [
        pod["metadata"]
        for pod in workloads.living(cluster.driver_namespace.get("pods", "", *chosen))
    ]
    found.sort(key=lambda each: str(each["creationTimestamp"]))
    return {each["uid"]: each["name"] for each in found}


def kill(component: Component, uid: str) -> bool:
    """Kill the plugin's process of a pod, if there is one."""
    variable = f"POD_UID={uid}"
    for pid in lab_command.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text()
            if component.name in words and variable in _environment(pid):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def _environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")


@dataclass
class SocketGaps:
    """The times at which a driver had no registration socket on a node.

    Attributes:
        seconds: The length of each, in order.
    """

    seconds: list[float] = field(default_factory=list)


@contextlib.contextmanager
def record_gaps(cluster: Cluster, component: Component, node: str) -> Iterator[SocketGaps]:
    """Record while the block runs when no instance of a plugin could be registered."""
    gaps = SocketGaps()

    def look(stop: threading.Event) -> None:
        began: float | None = None
        while not stop.wait(POLL_S):
            now = time.monotonic()
            if not sockets(cluster, component, node):
                began = now if began is None else began
            elif began is not None:
                gaps.seconds.append(now - began)
                began = None
        if began is not None:
            gaps.seconds.append(time.monotonic() - began)

    with background.running(look):
        yield gaps
