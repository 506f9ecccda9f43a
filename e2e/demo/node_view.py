# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-smi` says on a node, as its administrator sees it."""

from nvdra_lab import model
from nvdra_testing.cluster.installation import Cluster

from e2e.demo import next_steps
from e2e.demo.screen import Screen

PROGRAM = f"{model.DRIVER_ROOT}/usr/bin/nvidia-smi"


def show(screen: Screen, cluster: Cluster, node: str, *arguments: str) -> None:
    """Show the command and its output."""
    flag = next_steps.name_flag(cluster.lab.name)
    screen.commands([f"lab exec{flag} {node} -- nvidia-smi {' '.join(arguments)}"])
    screen.quote(read(cluster, node, *arguments))


def read(cluster: Cluster, node: str, *arguments: str) -> str:
    """The output."""
    return cluster.exec_on_node(node, PROGRAM, *arguments)
