# SPDX-License-Identifier: Apache-2.0
"""A lab with real nodes and the driver installed by helm."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nvdra_lab.progress import Progress
from nvdra_testing.cluster.installation import GPU_PLUGIN, Cluster, Component
from nvdra_testing.cluster.lab_command import LAB_PROGRAM, STATE_DIR, Lab

NAME = "bench"


@contextmanager
def running(
    progress: Progress,
    profile: str,
    *settings: str,
    component: Component = GPU_PLUGIN,
    nodes: int = 2,
) -> Iterator[Cluster]:
    """Run a lab while the block runs. Needs root.

    Args:
        progress: Shows the progress.
        profile: Hardware profile of each node.
        settings: Flags of helm.
        component: The plugin that is measured.
        nodes: How many nodes there are.
    """
    _lab("image", "build")
    if (STATE_DIR / NAME).exists():
        _lab("down", "--name", NAME)
    _lab("up", "--name", NAME, "--nodes", str(nodes), "--profile", profile)
    try:
        _lab("image", "load", "--name", NAME)
        cluster = Cluster.from_lab(Lab(NAME), component)
        with progress.step("helm install nvdra"):
            cluster.install(*settings)
        yield cluster
    finally:
        _lab("down", "--name", NAME)


def _lab(*arguments: str) -> None:
    """Run the `lab` command, which prints its own progress."""
    done = subprocess.run([LAB_PROGRAM, *arguments], check=False)
    if done.returncode != 0:
        sys.exit(f"lab {' '.join(arguments)} failed, see above")
