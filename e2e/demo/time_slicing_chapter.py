# SPDX-License-Identifier: Apache-2.0
"""The chapter about two pods that take turns on one GPU."""

from nvdra_testing.cluster.installation import Cluster

from e2e.demo import node_view, quickstarts
from e2e.demo.quickstarts import NAMESPACE
from e2e.demo.screen import Screen

CLAIM = "taken-in-turns"


def run(screen: Screen, cluster: Cluster) -> None:
    """Show what both pods see, and the GPU's time slice while they run and after them."""
    screen.chapter(
        "A GPU in turns",
        "Both pods name one claim, and its config says how long a process computes before the "
        "next one has its turn. The driver sets that on the GPU, and puts back what was there.",
    )
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    quickstart = quickstarts.start(screen, pods, quickstarts.TURNS)
    (device,) = cluster.allocated_devices(pods.get("resourceclaim", CLAIM))
    policy = "compute-policy", "-i", device.uuid, "--list"
    quickstarts.show_what_pods_see(screen, pods, quickstart)
    node_view.show(screen, cluster, device.node, *policy)
    quickstarts.delete_pods(screen, pods, quickstart)
    with screen.step("the time slice is as before"):
        cluster.kubectl.wait(
            lambda: "it is" if "Long" in node_view.read(cluster, device.node, *policy) else None,
            "the time slice to be Long no more",
        )
    node_view.show(screen, cluster, device.node, *policy)
