# SPDX-License-Identifier: Apache-2.0
"""Connections between the IMEX of two nodes, which are READY without them."""

from collections.abc import Iterator

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

BOTH = ("node-1", "node-2")
RETRY_S = 70
"""The simulated IMEX tries a peer again after 15, 31 and 62 s."""
TOLD_S = 60
"""Two looks of a small domain, and the controller's write."""


@pytest.fixture
def cut(rack: Cluster) -> Iterator[None]:
    """The link between both nodes is cut before their daemons start."""
    rack.lab.run_checked("cut-link", *BOTH)
    yield
    rack.lab.run("mend-link", *BOTH)


@pytest.fixture
def domain(rack: Cluster, team: Kubectl) -> Iterator[Domain]:
    """A domain of both nodes, Ready; the simulated IMEX behave as usual again at the end."""
    found = Domain(rack, compute_domains.create_domain(team, "ring"))
    compute_domains.run_on(team, "ring", BOTH)
    compute_domains.wait_ready(team, "ring", len(BOTH))
    yield found
    for node in BOTH:
        rack.simctl(node, "imex", "clear")
    team.delete("pod", *BOTH)
    team.delete("computedomain", "ring")
    found.wait_gone()
    compute_domains.wait_released(rack)


def not_degraded_by(team: Kubectl, *words: str) -> str | None:
    """The condition Degraded unless it is True for broken links and has these words."""
    return compute_domains.not_degraded(team, "ring", "ImexLinksBroken", *words)


def still_degraded(team: Kubectl) -> str | None:
    return compute_domains.still_degraded(team, "ring")


def test_two_driver_versions_in_a_domain_are_told_until_both_are_one(
    rack: Cluster, team: Kubectl, domain: Domain
) -> None:
    rack.simctl("node-2", "imex", "set", "--claim-version", "570.86.15")
    words = ("node-1 cannot talk to node-2 (VERSION_MISMATCH)", "node-2 cannot talk to node-1")
    team.wait(lambda: not_degraded_by(team, *words), "the domain to say who is cut off", TOLD_S)
    assert compute_domains.status(team, "ring")["status"] == "Ready"

    # IMEX blocks the other node for good: both daemons are replaced once the versions are equal.
    rack.simctl("node-2", "imex", "clear")
    rack.driver_namespace.delete("pod", *domain.daemons().values())
    compute_domains.wait_ready(team, "ring", len(BOTH), timeout_s=60)
    team.wait(lambda: still_degraded(team), "the domain to be well again", TOLD_S)


def test_a_daemon_that_does_not_describe_itself_is_told_and_harms_no_pod(
    rack: Cluster, team: Kubectl, domain: Domain
) -> None:
    rack.simctl("node-1", "imex", "set", "--nodes-hang")
    words = ("node-2 cannot talk to node-1 (UNAVAILABLE)", "connections of node-1 are not known")
    team.wait(lambda: not_degraded_by(team, *words), "the domain to say so", TOLD_S)
    assert compute_domains.status(team, "ring")["status"] == "Ready"
    for node in BOTH:
        assert compute_domains.channels(team, node) == {"channel0"}
    rack.simctl("node-1", "imex", "clear")
    team.wait(lambda: still_degraded(team), "the domain to be well again", TOLD_S)


@pytest.mark.timeout(300, func_only=True)
def test_a_cut_link_is_told_by_both_ends_until_it_is_mended(
    cut: None, rack: Cluster, team: Kubectl, domain: Domain
) -> None:
    words = ("node-1 cannot talk to node-2", "node-2 cannot talk to node-1")
    team.wait(lambda: not_degraded_by(team, *words), "the domain to say who is cut off", TOLD_S)
    assert compute_domains.status(team, "ring")["status"] == "Ready"
    for node in BOTH:
        assert compute_domains.channels(team, node) == {"channel0"}
    rack.lab.run_checked("mend-link", *BOTH)
    team.wait(lambda: still_degraded(team), "the domain to be well again", RETRY_S + TOLD_S)
