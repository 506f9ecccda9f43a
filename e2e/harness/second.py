"""The second driver on a node of a lab: started, told what to do, asked what it was called for."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cluster import Cluster
from kubectl import Kubectl
from labtool import LAB

from e2e.second_driver.orders import DRIVER, ENV, Desk

REPOSITORY = Path(__file__).parents[2]
START_S = 60
LOG_BYTES = 2000
CONNECTED = "03"
"""The state of a socket in /proc/net/unix that somebody is connected to."""


@contextlib.contextmanager
def running(cluster: Cluster, node: str, folder: Path) -> Iterator[Desk]:
    """The driver serves on `node` until the block is left; its slices stay, as any driver's do.

    Args:
        cluster: The lab.
        node: Where.
        folder: For orders, calls, its log; seen by the node, so not below what a node has of its
            own (/var/lib, /run, /var/log, /dev).
    """
    kubeconfig = folder / "kubeconfig"  # the lab's own lies where nodes do not see it
    shutil.copyfile(cluster.kubectl.kubeconfig, kubeconfig)
    inside = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "e2e.second_driver.driver"]
    argv = [LAB, "exec", "--name", cluster.lab.name, node, "--", *inside]
    with (
        (folder / "driver.log").open("ab") as log,
        subprocess.Popen(
            [*map(str, argv), node, str(kubeconfig), str(folder)], stdout=log, stderr=log
        ) as process,
    ):
        desk = Desk(folder)
        try:
            cluster.kubectl.wait(
                lambda: None if desk.is_open else (folder / "driver.log").read_text()[-LOG_BYTES:],
                "the second driver to be registered",
                START_S,
            )
            yield desk
        finally:
            cluster.inside(node, "pkill", "-TERM", "-f", "e2e.second_driver")
            process.wait(timeout=30)


def seen(pods: Kubectl, pod: str, container: str = "") -> set[str]:
    """The devices that a container was given."""
    variables = (line.partition("=") for line in pods.exec(pod, "env", container=container).split())
    return {value for name, _, value in variables if name.startswith(ENV)}


def connections(cluster: Cluster, node: str) -> int:
    """How many connections to the driver's DRA socket there are on its node."""
    lines = cluster.inside(node, "cat", "/proc/net/unix").splitlines()
    # The name is the one that the socket was bound by, before it was moved to its path.
    return sum(f"/plugins/{DRIVER}/" in line and line.split()[5] == CONNECTED for line in lines)
