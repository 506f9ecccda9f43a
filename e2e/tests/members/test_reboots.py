# SPDX-License-Identifier: Apache-2.0
"""A node of a domain is rebooted while its pod has a channel."""

from functools import partial

import pytest
from nvdra_testing.cluster import compute_domains, pod_prepares
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NAME = "ring"
NODES = ("node-1", "node-2")
BACK_S = 150


@pytest.mark.timeout(400, func_only=True)
def test_a_pod_has_its_channel_again_after_its_node_was_rebooted(
    rack: Cluster, team: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, NAME))
    compute_domains.run_on(team, NAME, NODES)
    compute_domains.wait_ready(team, NAME, len(NODES))
    daemons, indexes = domain.daemons(), compute_domains.node_indexes(team, NAME)
    before, others = container_of(team, "node-1"), container_of(team, "node-2")

    rack.reboot("node-1")
    refused = partial(pod_prepares.is_status_rejected, rack, "node-1", team, "node-1")

    def gone_by() -> str | None:
        for space, name in ((rack.driver_namespace, daemons["node-1"]), (team, "node-1")):
            # The kubelet found the pods before the plugin was back, and would retry after a minute.
            space.run("annotate", "--overwrite", "pod", name, "tests/again=now")
        is_back = container_of(team, "node-1") != before and not team.not_ready("node-1")
        return None if is_back or refused() else team.not_ready("node-1") or "the same container"

    team.wait(gone_by, "the pod to run in a new container", BACK_S)
    compute_domains.wait_ready(team, NAME, len(NODES), 60)
    if not refused():
        assert compute_domains.channels(team, "node-1") == {"channel0"}
    assert domain.daemons() == daemons
    assert compute_domains.node_indexes(team, NAME) == indexes
    assert container_of(team, "node-2") == others

    how = ("--force", "--grace-period=0") if refused() else ()
    team.run("delete", "pod", *NODES, *how)
    team.delete("computedomain", NAME)
    domain.wait_gone()
    compute_domains.wait_released(rack)


def container_of(team: Kubectl, pod: str) -> str:
    """The ID of the pod's container."""
    (status,) = team.get("pod", pod)["status"]["containerStatuses"]
    return str(status.get("containerID"))
