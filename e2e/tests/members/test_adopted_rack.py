"""A rack with the reference driver's claims and definitions gets our driver while its pods run."""

from functools import partial

import pytest
from nvdra_api import names
from nvdra_testing.cluster import compute_domains, reference_node, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import CHART, NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NAME = "ring"
NODES = ("node-1", "node-2")
DEFINITIONS = tuple(
    f"customresourcedefinition/{plural}.resource.nvidia.com"
    for plural in ("computedomains", "computedomaincliques")
)
OWNERSHIP = (
    "meta.helm.sh/release-name-",
    "meta.helm.sh/release-namespace-",
)


@pytest.mark.timeout(400, func_only=True)
def test_channels_and_definitions_of_the_reference_driver_are_taken_over(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, NAME))
    compute_domains.run_on(team, NAME, NODES, timeout_s=150)
    compute_domains.wait_ready(team, NAME, len(NODES), 60)
    before, daemons = containers(team), domain.daemons()
    rack.uninstall()
    for node in NODES:
        claims = workloads.claims_of(team, node)
        reference_node.leave_channel_claims(rack, node, domain.uid, claims)
    left = read(rack)
    for definition in DEFINITIONS:  # they are not objects of its release
        rack.kubectl.run("annotate", definition, *OWNERSHIP)
        rack.kubectl.run("label", definition, "app.kubernetes.io/managed-by-")

    refused = rack.lab.run("helm", "install", RELEASE, str(CHART), "--namespace", NAMESPACE)
    assert "invalid ownership metadata" in refused.stderr
    for _ in range(2):
        rack.install(*rack_settings, "--take-ownership", wait_s=90)
        compute_domains.wait_ready(team, NAME, len(NODES), 60)
        assert containers(team) == before
        assert domain.daemons() == daemons
        for node in NODES:
            assert compute_domains.channels(team, node) == {"channel0"}
        # Whoever goes back finds what the reference driver reads, and room for its sockets.
        rack.uninstall()
        assert read(rack) == left
        for node in NODES:
            assert reference_node.sockets(rack, node, names.COMPUTE_DOMAIN_DRIVER) == []
        assert containers(team) == before
    rack.install(*rack_settings, wait_s=90)

    team.delete("pod", *NODES)
    team.delete("computedomain", NAME)
    domain.wait_gone()
    compute_domains.wait_released(rack)
    for node in NODES:
        rack.kubectl.wait(partial(not_gone, rack, node), "the checkpoint to be gone")


def containers(team: Kubectl) -> dict[str, tuple[str, int]]:
    """The container of each pod, and how often it was restarted."""
    found = {node: team.get("pod", node)["status"]["containerStatuses"][0] for node in NODES}
    return {node: (each["containerID"], each["restartCount"]) for node, each in found.items()}


def read(rack: Cluster) -> dict[str, dict[str, str]]:
    """What the reference driver's plugin would read on each node."""
    driver = names.COMPUTE_DOMAIN_DRIVER
    return {node: reference_node.what_is_read(rack, node, driver) for node in NODES}


def not_gone(rack: Cluster, node: str) -> str | None:
    """The files of the reference driver on a node; None if there are none."""
    return ", ".join(reference_node.leftovers(rack, node, names.COMPUTE_DOMAIN_DRIVER)) or None
