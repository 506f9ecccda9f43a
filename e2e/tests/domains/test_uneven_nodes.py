# SPDX-License-Identifier: Apache-2.0
"""A domain whose nodes do not share one NVLink partition: IMEX connects nodes of a clique only."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain, Json
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

BOTH = ("node-1", "node-2")
CLIQUE, OTHER_CLIQUE = 2, 7
"""The clique of every GPU in the simulated rack, and the one that some are given."""


@contextmanager
def changed_fabric(rack: Cluster, node: str, *flags: str) -> Iterator[None]:
    """All GPUs of a node have another fabric while the block runs."""
    try:
        compute_domains.restart_with_fabric(rack, node, *flags)
        yield
    finally:
        back = ("--fabric-state", "completed", "--clique", str(CLIQUE))
        compute_domains.restart_with_fabric(rack, node, *back)


@contextmanager
def running_domain(rack: Cluster, team: Kubectl) -> Iterator[tuple[Domain, dict[str, Json]]]:
    """A domain with a pod on each node, and what its status says of them; deleted at the end."""
    domain = Domain(rack, compute_domains.create_domain(team, "ring", nodes=len(BOTH)))
    compute_domains.run_on(team, "ring", BOTH)
    compute_domains.wait_ready(team, "ring", len(BOTH))
    nodes = compute_domains.status(team, "ring")["nodes"]
    yield domain, {each["name"]: each for each in nodes}
    team.delete("pod", *BOTH)
    team.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


@pytest.mark.timeout(400, func_only=True)
def test_a_domain_over_two_cliques_has_a_ring_in_each(rack: Cluster, team: Kubectl) -> None:
    with (
        changed_fabric(rack, "node-2", "--clique", str(OTHER_CLIQUE)),
        running_domain(rack, team) as (domain, nodes),
    ):
        cliques = {node: nodes[node]["cliqueID"] for node in BOTH}
        assert cliques["node-2"].endswith(f".{OTHER_CLIQUE}")
        assert cliques["node-1"].endswith(f".{CLIQUE}")
        assert [nodes[node]["index"] for node in BOTH] == [0, 0]
        objects = domain.objects("computedomaincliques")
        assert sorted(len(each["daemons"]) for each in objects) == [1, 1]
        for node in BOTH:
            assert compute_domains.channels(team, node) == {"channel0"}
            peers = domain.wait_imex_status(node)["nodes"].values()
            assert {each["hostName"] for each in peers} >= {domain.daemons()[node]}
            other = domain.daemons()[BOTH[1 - BOTH.index(node)]]
            assert other not in {each["hostName"] for each in peers}


@pytest.mark.timeout(400, func_only=True)
def test_a_domain_over_nodes_with_and_without_fabric_is_ready_on_both(
    rack: Cluster, team: Kubectl
) -> None:
    with (
        changed_fabric(rack, "node-2", "--fabric-state", "not_supported"),
        running_domain(rack, team) as (domain, nodes),
    ):
        assert nodes["node-1"]["index"] == 0
        assert nodes["node-1"]["cliqueID"]
        assert (nodes["node-2"]["index"], nodes["node-2"]["cliqueID"]) == (-1, "")
        assert compute_domains.channels(team, "node-1") == {"channel0"}
        assert team.exec("node-2", "find", "/dev", "-name", "channel*") == ""
        (clique,) = domain.objects("computedomaincliques")
        assert [each["nodeName"] for each in clique["daemons"]] == ["node-1"]
