# SPDX-License-Identifier: Apache-2.0
"""The chapter about MIG devices that are made for pods: one, and four of one board."""

from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.installation import Cluster

from e2e.demo import node_view, quickstarts
from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import Screen


def run(screen: Screen, cluster: Cluster) -> None:
    """Show both; skipped where no MIG devices are offered."""
    screen.chapter(
        "MIG devices, made to order",
        "Every part that a GPU can be divided into is offered beside the whole GPU. The part that "
        "a pod is given is made before the pod starts, and destroyed after it.",
    )
    offered = [each for each in cluster.devices() if each.attributes["type"] == "mig"]
    if not offered:
        screen.note(
            "None is offered here: that takes GPUs with MIG, and Kubernetes 1.36 or the gate "
            "DRAPartitionableDevices"
        )
        return
    profiles = sorted({str(each.attributes["profile"]) for each in offered})
    screen.prose(f"Profiles of these GPUs: {', '.join(profiles)}.")
    for file in (quickstarts.ONE_SLICE, quickstarts.FOUR_SLICES):
        _show(screen, cluster, file)


def _show(screen: Screen, cluster: Cluster, file: str) -> None:
    """Start the pod of a quickstart, look into it and at its node, and delete it."""
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    quickstart = quickstarts.start(screen, pods, file)
    (claim,) = workloads.claims_of(pods, quickstart.pods[0])
    given = cluster.allocated_devices(claim)
    node, board = given[0].node, str(given[0].attributes["parentUUID"])
    screen.prose(f"{node}: {', '.join(device.name for device in given)}", indent=6)
    quickstarts.show_what_pods_see(screen, pods, quickstart)
    quickstarts.delete_pods(screen, pods, quickstart)
    with screen.step(f"no MIG device is left on that GPU of {node}"):
        cluster.kubectl.wait(
            lambda: None if "MIG-" not in _list(cluster, node, board) else "some are",
            "the MIG devices to be destroyed",
        )
    node_view.show(screen, cluster, node, "-L", "-i", board)


def _list(cluster: Cluster, node: str, board: str) -> str:
    return node_view.read(cluster, node, "-L", "-i", board)
