# SPDX-License-Identifier: Apache-2.0
"""A domain whose nodes do not share one NVLink partition: IMEX connects nodes of a clique only."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain, Json
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

BOTH = ("node-1", "node-2")
CLIQUE, OTHER_CLIQUE = 2, 7
"""The clique of every GPU in the simulated rack, and the one that some are given."""
BACK = ("--fabric-state", "completed", "--clique", str(CLIQUE))
NOTICED_S = 100
"""GPUs are asked every 45 s, the plugin writes and the daemon reads every 5 s: a minute at most."""


@contextmanager
def changed_fabric(rack: Cluster, node: str, *flags: str) -> Iterator[None]:
    """All GPUs of a node have another fabric while the block runs."""
    try:
        compute_domains.restart_with_fabric(rack, node, *flags)
        yield
    finally:
        compute_domains.restart_with_fabric(rack, node, *BACK)


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


@pytest.mark.timeout(600, func_only=True)
def test_a_domain_says_which_node_has_left_its_clique_and_what_to_do(
    rack: Cluster, team: Kubectl
) -> None:
    with running_domain(rack, team) as (domain, nodes):
        daemons, joined = domain.daemons(), nodes["node-1"]["cliqueID"]
        other = f"{joined.partition('.')[0]}.{OTHER_CLIQUE}"
        elsewhere = (
            f"the GPUs of node-1 are in the clique {other} now, and its daemon has joined {joined}",
            "delete the daemon's pod",
        )
        nowhere = (
            f"the GPUs of node-1 are in no NVLink clique now, and its daemon has joined {joined}",
            "drain the node and reboot it",
        )
        try:
            for words, *flags in (
                (elsewhere, "--clique", str(OTHER_CLIQUE)),
                (nowhere, "--fabric-state", "not_supported"),
            ):
                rack.simctl("node-1", "fabric", "all", *flags)
                wait_degraded(team, *words)
                rack.simctl("node-1", "fabric", "all", *BACK)
                team.wait(
                    partial(compute_domains.still_degraded, team, "ring"),
                    "nothing to be wrong any more",
                    NOTICED_S,
                )
        finally:
            rack.simctl("node-1", "fabric", "all", *BACK)
        assert domain.daemons() == daemons
        assert compute_domains.status(team, "ring")["status"] == "Ready"
        assert compute_domains.channels(team, "node-1") == {"channel0"}


def wait_degraded(team: Kubectl, *words: str) -> None:
    """Wait until the domain is Degraded by another clique, and an Event says so, in these words."""
    told = partial(compute_domains.not_degraded, team, "ring", "CliqueChanged", *words)
    team.wait(told, f"the domain to say {words}", NOTICED_S)

    def missing() -> str | None:
        events = [text for reason, text in team.events("ring") if reason == "CliqueChanged"]
        return None if any(all(word in text for word in words) for text in events) else str(events)

    team.wait(missing, f"an Event of the domain that says {words}")
