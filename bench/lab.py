"""Two real nodes with the driver installed by helm, while something is measured on them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cluster import GPUS, Cluster, Component
from labtool import LAB, STATE, Lab
from nvdra_lab.progress import Progress

NAME = "bench"


@contextmanager
def running(
    progress: Progress, profile: str, *settings: str, component: Component = GPUS
) -> Iterator[Cluster]:
    """A lab of its own, which is taken down again; needs root.

    Args:
        progress: Told how far it is.
        profile: Hardware of each node.
        settings: Flags of helm.
        component: The plugin whose pods are looked at.
    """
    _lab("image", "build")
    if (STATE / NAME).exists():
        _lab("down", "--name", NAME)
    _lab("up", "--name", NAME, "--nodes", "2", "--profile", profile)
    try:
        _lab("image", "load", "--name", NAME)
        cluster = Cluster.of(Lab(NAME), component)
        with progress.step("helm install nvdra"):
            cluster.install(*settings)
        yield cluster
    finally:
        _lab("down", "--name", NAME)


def _lab(*arguments: str) -> None:
    """Run `lab`, which says itself how far it is."""
    done = subprocess.run([LAB, *arguments], check=False)
    if done.returncode != 0:
        sys.exit(f"lab {' '.join(arguments)} failed, see above")
