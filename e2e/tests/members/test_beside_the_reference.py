# SPDX-License-Identifier: Apache-2.0
"""A domain made by the reference driver's controller over our plugins and daemons.

`--peer=ARCHIVE` runs its image. Without it the reference's manifest runs our controller's image,
under the reference's program name and with its variables.
"""

from pathlib import Path

import pytest
from nvdra_testing.cluster import compute_domains, reference_controller
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODES = ("node-1", "node-2")
SETTLED_S = 60


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Path | None:
    """The archive of the reference's image, if somebody has one."""
    archive: Path | None = request.config.getoption("--peer")
    if archive is None and not request.config.getoption("--soak"):
        pytest.skip("tells something new with --peer=ARCHIVE; --soak runs it with our own image")
    return archive


@pytest.mark.timeout(400, func_only=True)
def test_the_reference_s_controller_makes_a_domain_that_ours_takes_over_and_deletes(
    peer: Path | None, no_controller: None, rack: Cluster, team: Kubectl
) -> None:
    with reference_controller.run(rack, peer, max_nodes=len(NODES)):
        first = Domain(rack, compute_domains.create_domain(team, "first"))
        compute_domains.run_on(team, "first", NODES, timeout_s=150)
        compute_domains.wait_ready(team, "first", len(NODES), SETTLED_S)
        for node in NODES:
            assert compute_domains.channels(team, node) == {"channel0"}

        # What its controller deletes, nobody of ours holds.
        team.delete("pod", *NODES)
        team.delete("computedomain", "first")
        first.wait_gone(SETTLED_S)

        second = Domain(rack, compute_domains.create_domain(team, "second"))
        compute_domains.run_on(team, "second", NODES, timeout_s=150)
        compute_domains.wait_ready(team, "second", len(NODES), SETTLED_S)
    daemons = second.daemons()

    compute_domains.scale_controller(rack, 1)
    compute_domains.wait_leader(rack)
    compute_domains.wait_ready(team, "second", len(NODES), SETTLED_S)
    assert second.daemons() == daemons
    team.delete("pod", *NODES)
    team.delete("computedomain", "second")
    second.wait_gone(SETTLED_S)
    compute_domains.wait_released(rack)
