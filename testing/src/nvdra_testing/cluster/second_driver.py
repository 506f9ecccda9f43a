# SPDX-License-Identifier: Apache-2.0
"""Runs the second driver on a node of a lab."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from e2e.second_driver.control_files import DRIVER, ENV_PREFIX, ControlDir
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.lab_command import LAB_PROGRAM

REPOSITORY = Path(__file__).parents[4]
START_S = 60
LOG_BYTES = 2000
CONNECTED = "03"
"""The state of a connected socket in /proc/net/unix."""


@contextlib.contextmanager
def run_driver(cluster: Cluster, node: str, folder: Path) -> Iterator[ControlDir]:
    """Run the driver on `node` until the block is left. Its slices stay, as those of any driver do.

    Args:
        cluster: The lab.
        node: The node.
        folder: For instructions, calls and the log. The node must see it, so it must not be below a
            directory that a node has of its own (/var/lib, /run, /var/log, /dev).
    """
    kubeconfig = folder / "kubeconfig"  # nodes cannot see the lab's own kubeconfig
    shutil.copyfile(cluster.kubectl.kubeconfig, kubeconfig)
    inside = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "e2e.second_driver.driver"]
    argv = [LAB_PROGRAM, "exec", "--name", cluster.lab.name, node, "--", *inside]
    with (
        (folder / "driver.log").open("ab") as log,
        subprocess.Popen(
            [*map(str, argv), node, str(kubeconfig), str(folder)], stdout=log, stderr=log
        ) as process,
    ):
        desk = ControlDir(folder)
        try:
            cluster.kubectl.wait(
                lambda: (
                    None if desk.is_registered else (folder / "driver.log").read_text()[-LOG_BYTES:]
                ),
                "the second driver to be registered",
                START_S,
            )
            yield desk
        finally:
            cluster.exec_on_node(node, "pkill", "-TERM", "-f", "e2e.second_driver")
            process.wait(timeout=30)


def devices_of_container(pods: Kubectl, pod: str, container: str = "") -> set[str]:
    """The devices in a container."""
    variables = (line.partition("=") for line in pods.exec(pod, "env", container=container).split())
    return {value for name, _, value in variables if name.startswith(ENV_PREFIX)}


def connection_count(cluster: Cluster, node: str) -> int:
    """The number of connections to the driver's DRA socket on its node."""
    lines = cluster.exec_on_node(node, "cat", "/proc/net/unix").splitlines()
    # The kernel shows the name under which the socket was bound, before it was moved.
    return sum(f"/plugins/{DRIVER}/" in line and line.split()[5] == CONNECTED for line in lines)
