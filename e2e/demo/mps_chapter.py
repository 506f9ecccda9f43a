# SPDX-License-Identifier: Apache-2.0
"""The chapter about two pods that compute on one GPU at once."""

from nvdra_testing.cluster import mps_daemons
from nvdra_testing.cluster.installation import NAMESPACE as DRIVERS
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

from e2e.demo import node_view, quickstarts
from e2e.demo.quickstarts import NAMESPACE, Quickstart
from e2e.demo.screen import Screen

CLAIM = "shared-by-mps"
OBJECTS = ("get", "deployments,pods", "-l", mps_daemons.LABEL)
CLIENTS = "echo ps | nvidia-cuda-mps-control"


def run(screen: Screen, cluster: Cluster) -> None:
    """Show what both pods see, their daemon and their GPU, and that all is as before afterwards."""
    screen.chapter(
        "A GPU for two at once",
        "Both pods name one claim, and its config gives each process half of the GPU and 10 GiB. "
        "For that the driver runs an MPS control daemon, in a pod of its own, as long as the "
        "claim is prepared; nobody else can compute on the GPU meanwhile.",
    )
    pods = cluster.kubectl.in_namespace(NAMESPACE)
    quickstart = quickstarts.start(screen, pods, quickstarts.MPS_PAIR)
    (device,) = cluster.allocated_devices(pods.get("resourceclaim", CLAIM))
    mode = "-i", device.uuid, "--query-gpu=uuid,compute_mode", "--format=csv"
    _show_limits(screen, pods, quickstart)
    first = quickstart.pods[0]
    screen.commands([f'kubectl -n {NAMESPACE} exec {first} -- sh -c "{CLIENTS}"'])
    screen.quote(pods.exec(first, "sh", "-c", CLIENTS))
    _show_daemon(screen, cluster)
    node_view.show(screen, cluster, device.node, *mode)
    quickstarts.delete_pods(screen, pods, quickstart)
    with screen.step("nothing is left of it: daemon, limits, compute mode"):
        mps_daemons.wait_gone(cluster, device.node)
    _show_daemon(screen, cluster)
    node_view.show(screen, cluster, device.node, *mode)


def _show_limits(screen: Screen, pods: Kubectl, quickstart: Quickstart) -> None:
    """What each pod's CUDA program says."""
    for name in quickstart.pods:
        mps_daemons.wait_log(pods, name, "computing")
        screen.commands([f"kubectl -n {NAMESPACE} logs {name}"])
        screen.quote(pods.logs(name))


def _show_daemon(screen: Screen, cluster: Cluster) -> None:
    """The Deployment and the pod of the daemon, if there is one."""
    screen.commands([f"kubectl -n {DRIVERS} {' '.join(OBJECTS)}"])
    done = cluster.driver_namespace.run_unchecked(*OBJECTS)
    screen.quote(done.stdout or done.stderr)
