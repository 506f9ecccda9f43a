# SPDX-License-Identifier: Apache-2.0
"""A ComputeDomain in a cluster whose pods have IPv6 addresses first."""

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import CD_PLUGIN, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODES = ("node-1", "node-2")


@pytest.fixture(scope="session")
def bare_rack(
    run_lab: Callable[..., AbstractContextManager[Cluster]], pytestconfig: pytest.Config
) -> Iterator[Cluster]:
    """Two trays of one rack, whose pods talk over IPv6."""
    name = f"{pytestconfig.getoption('--lab')}-ipv6"
    with run_lab(name, compute_domains.RACK_PROFILE, CD_PLUGIN, "--ipv6") as cluster:
        yield cluster


def test_the_daemons_of_a_domain_are_connected_over_ipv6(rack: Cluster, team: Kubectl) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, "ring", nodes=len(NODES)))
    compute_domains.run_on(team, "ring", NODES)
    compute_domains.wait_ready(team, "ring", len(NODES))
    for node in NODES:
        assert compute_domains.channels(team, node) == {"channel0"}
        team.wait(partial(not_up, domain, node), f"the IMEX of {node} to be UP")
    nodes = compute_domains.status(team, "ring")["nodes"]
    assert {ipaddress.ip_address(each["ipAddress"]).version for each in nodes} == {6}
    assert sorted(each["index"] for each in nodes) == [0, 1]
    team.delete("pod", *NODES)
    team.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


def not_up(domain: Domain, node: str) -> str | None:
    """The state of a node's IMEX, which is UP once it is connected to all others."""
    state = domain.imex_status(node).get("status")
    return None if state == "UP" else str(state)
