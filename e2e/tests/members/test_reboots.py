# SPDX-License-Identifier: Apache-2.0
"""A node of a domain is rebooted while its pod has a channel."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from nvdra_testing.cluster import compute_domains, pod_prepares
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NAME = "ring"
NODES = ("node-1", "node-2")
BACK_S = 150
OTHER_CLIQUE = "11111111-2222-5333-8444-555555555555.7"
"""That of another rack."""


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
    is_refused = wait_again(rack, team, daemons["node-1"], before)
    compute_domains.wait_ready(team, NAME, len(NODES), 60)
    if not is_refused:
        assert compute_domains.channels(team, "node-1") == {"channel0"}
    assert domain.daemons() == daemons
    assert compute_domains.node_indexes(team, NAME) == indexes
    assert container_of(team, "node-2") == others
    delete(rack, team, domain, is_refused=is_refused)


@pytest.mark.timeout(600, func_only=True)
def test_a_node_that_is_rebooted_in_another_rack_joins_the_clique_of_that_rack(
    rack: Cluster, team: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, NAME))
    compute_domains.run_on(team, NAME, NODES)
    compute_domains.wait_ready(team, NAME, len(NODES))
    daemons, before = domain.daemons(), container_of(team, "node-1")
    others = container_of(team, "node-2")
    (former,) = set(cliques(team).values())
    assert members(domain) == {former: set(NODES)}
    moved = {former: {"node-2"}, OTHER_CLIQUE: {"node-1"}}

    with booted_in_another_rack(rack, "node-1"):
        is_refused = wait_again(rack, team, daemons["node-1"], before)
        if not is_refused:  # a former entry answers no claim: the pod has waited for the new one
            assert "node-1" in members(domain).get(OTHER_CLIQUE, ())
            assert compute_domains.channels(team, "node-1") == {"channel0"}
        team.wait(
            lambda: None if members(domain) == moved else str(members(domain)),
            "an entry of each node in its own clique",
        )
        compute_domains.wait_ready(team, NAME, len(NODES), 60)
        assert cliques(team) == {"node-1": OTHER_CLIQUE, "node-2": former}
        assert compute_domains.status(team, NAME)["cliques"] == 2
        assert domain.daemons() == daemons
        peers = domain.wait_imex_status("node-1")["nodes"].values()
        assert daemons["node-2"] not in {each["hostName"] for each in peers}
        assert container_of(team, "node-2") == others
        delete(rack, team, domain, is_refused=is_refused)


@contextmanager
def booted_in_another_rack(rack: Cluster, node: str) -> Iterator[None]:
    """A node is rebooted with another fabric, and with its own one when the block is left."""
    cluster_uuid, _, number = OTHER_CLIQUE.rpartition(".")
    fabric = {"cluster_uuid": cluster_uuid, "clique": int(number)}
    try:
        rack.reboot(node, profile=compute_domains.RACK_PROFILE, fabric=fabric)
        yield
    finally:
        rack.reboot(node, profile=compute_domains.RACK_PROFILE)


def wait_again(rack: Cluster, team: Kubectl, daemon: str, before: str) -> bool:
    """Wait until the pod of node-1 runs in another container than before its reboot.

    Returns:
        Whether the API server refuses what the kubelet says of the pod, which stays as it was.
    """
    refused = partial(pod_prepares.is_status_rejected, rack, "node-1", team, "node-1")

    def gone_by() -> str | None:
        for space, name in ((rack.driver_namespace, daemon), (team, "node-1")):
            # The kubelet found the pods before the plugin was back, and would retry after a minute.
            space.run("annotate", "--overwrite", "pod", name, "tests/again=now")
        is_back = container_of(team, "node-1") != before and not team.not_ready("node-1")
        return None if is_back or refused() else team.not_ready("node-1") or "the same container"

    team.wait(gone_by, "the pod to run in a new container", BACK_S)
    return refused()


def delete(rack: Cluster, team: Kubectl, domain: Domain, *, is_refused: bool) -> None:
    """Delete pods and domain, and wait until nothing is left of them."""
    how = ("--force", "--grace-period=0") if is_refused else ()
    team.run("delete", "pod", *NODES, *how)
    team.delete("computedomain", NAME)
    domain.wait_gone()
    compute_domains.wait_released(rack)


def cliques(team: Kubectl) -> dict[str, str]:
    """Node → its clique, by the status of the domain."""
    nodes = compute_domains.status(team, NAME)["nodes"]
    return {each["name"]: each["cliqueID"] for each in nodes}


def members(domain: Domain) -> dict[str, set[str]]:
    """Clique → the nodes that have an entry in it; without cliques that have none."""
    return {
        each["metadata"]["name"].partition(".")[2]: {entry["nodeName"] for entry in entries}
        for each in domain.objects("computedomaincliques")
        if (entries := each.get("daemons"))
    }


def container_of(team: Kubectl, pod: str) -> str:
    """The ID of the pod's container."""
    (status,) = team.get("pod", pod)["status"]["containerStatuses"]
    return str(status.get("containerID"))
