"""The second driver on a node of a lab: started, told what to do, asked what it was called for."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import Cluster
from labtool import LAB
from workloads import API, Manifest

from e2e.second_driver.orders import DRIVER, ENV, Desk

REPOSITORY = Path(__file__).parents[2]


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
        subprocess.Popen([*argv, node, kubeconfig, folder], stdout=log, stderr=log) as process,
    ):
        try:
            yield Desk(folder)
        finally:
            cluster.inside(node, "pkill", "-TERM", "-f", "e2e.second_driver")
            process.wait(timeout=30)


def things(name: str = "thing", *, of: str = DRIVER) -> Manifest:
    """A request for one of the driver's devices, by its `device_class`."""
    return {"name": name, "exactly": {"deviceClassName": of}}


def device_class(driver: str = DRIVER) -> Manifest:
    """The class of all devices of a driver."""
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [selector]},
    }


def seen(pods: Any, pod: str, container: str = "") -> str:
    """The device that a container was given; empty if none."""
    return str(pods.exec(pod, "sh", "-c", f"echo ${ENV}", container=container)).strip()
