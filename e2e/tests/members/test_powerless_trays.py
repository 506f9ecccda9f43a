# SPDX-License-Identifier: Apache-2.0
"""A tray of a domain loses its power, and comes back."""

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.api_client import ApiClient
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.random_domains import recording

NAME = "ring"
NOTICED_S = 90
"""Kubernetes calls a node NotReady after 40 to 50 s without a sign of it."""
CONTROLLER_BACK_S = 60
"""On another tray, once Kubernetes has noticed that its own is lost."""
BACK_S = 240
"""The kubelet repeats a prepare that failed before the plugin was back after 60 to 90 s."""


@pytest.mark.timeout(800, func_only=True)
@pytest.mark.parametrize(
    ("has_controller", "was_found_ready"),
    [
        pytest.param(False, True, id=""),
        pytest.param(
            True,
            True,
            id="and its controller",
            marks=pytest.mark.soak("waits another minute for Kubernetes"),
        ),
        pytest.param(
            False,
            False,
            id="before its daemon was found ready",
            marks=pytest.mark.soak("waits another minute for Kubernetes"),
        ),
    ],
)
def test_a_tray_without_power_is_counted_out_and_in_again_under_its_index(
    rack: Cluster, team: Kubectl, has_controller: bool, was_found_ready: bool
) -> None:
    where = node_of_controller(rack)
    other = next(node for node in ("node-1", "node-2") if node != where)
    nodes, lost = (where, other), where if has_controller else other
    client = ApiClient.from_kubeconfig(rack.kubectl.kubeconfig)
    with recording.recorded(client, team.namespace) as seen:
        domain = Domain(rack, compute_domains.create_domain(team, NAME, nodes=len(nodes)))
        compute_domains.run_on(team, NAME, nodes)
        compute_domains.wait_ready(team, NAME, len(nodes))
        daemons, indexes = domain.daemons(), compute_domains.node_indexes(team, NAME)

        rack.lab.run_checked("power-off", lost)
        try:
            if not was_found_ready:
                deny_readiness(rack, client, daemons[lost])
            noticed_s = NOTICED_S + (CONTROLLER_BACK_S if has_controller else 0)
            team.wait(
                lambda: still_counted(team, {*nodes}, lost), f"{lost} to be counted out", noticed_s
            )
        finally:
            rack.lab.run_checked("power-on", lost)
        compute_domains.wait_ready(team, NAME, len(nodes), BACK_S)
        assert domain.daemons() == daemons
        assert compute_domains.node_indexes(team, NAME) == indexes
        assert seen.contradictions == []
        # How late Kubernetes itself is, is not known where the test has written the pod's status.
        if was_found_ready and not has_controller:
            assert seen.untruths([], recording.LATE_BESIDE_OTHERS_S, is_beyond_delay=True) == {}

    team.wait_running(*nodes, timeout_s=BACK_S)
    team.delete("pod", *nodes)
    team.delete("computedomain", NAME)
    domain.wait_gone()
    compute_domains.wait_released(rack)


def deny_readiness(rack: Cluster, client: ApiClient, pod: str) -> None:
    """Leave a daemon's pod as its kubelet had it before the readiness probe passed.

    The node controller changes nothing of such a pod when the node is lost.
    """
    path = f"/api/v1/namespaces/{rack.driver_namespace.namespace}/pods/{pod}"
    status = client.request("GET", path)["status"]
    for condition in status["conditions"]:
        if condition["type"] in ("Ready", "ContainersReady"):
            condition |= {"status": "False", "reason": "ContainersNotReady"}
    for container in status["containerStatuses"]:
        container["ready"] = False
    client.request("PATCH", f"{path}/status", {"status": status})


def node_of_controller(rack: Cluster) -> str:
    (pod,) = compute_domains.controller_pods(rack)
    return str(rack.driver_namespace.get("pod", pod)["spec"]["nodeName"])


def still_counted(team: Kubectl, nodes: set[str], lost: str) -> str | None:
    """The domain's status while the lost node counts as a Ready one."""
    status = compute_domains.status(team, NAME)
    ready = {each["name"] for each in status.get("nodes", []) if each["status"] == "Ready"}
    is_out = ready == nodes - {lost} and status["status"] == "NotReady"
    return None if is_out else str(status)
