# SPDX-License-Identifier: Apache-2.0
"""A domain of the reference driver is taken over with its pods, and deleted cleanly."""

import pytest
from nvdra_testing.cluster import compute_domains, reference_domain
from nvdra_testing.cluster.compute_domains import Domain, Json
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NAME = "ring"
NODES = ("node-1", "node-2")
CHILDREN = ("daemonsets", "resourceclaimtemplates")
SETTLED_S = 60


def uids(domain: Domain, team: Kubectl) -> dict[str, str]:
    """Name → UID of each of the domain's children."""
    of_workload = [team.get("resourceclaimtemplate", compute_domains.template_name(NAME))]
    found = [each for kind in CHILDREN for each in domain.objects(kind)] + of_workload
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}


def containers(team: Kubectl) -> dict[str, Json]:
    """The container of each of the workload's pods."""
    return {node: team.get("pod", node)["status"]["containerStatuses"][0] for node in NODES}


@pytest.mark.timeout(400, func_only=True)
def test_a_running_domain_of_the_reference_driver_is_taken_over(
    no_controller: None, rack: Cluster, team: Kubectl
) -> None:
    domain = reference_domain.create(rack, team, NAME, max_nodes=2)
    compute_domains.run_on(team, NAME, NODES, timeout_s=150)
    reference_domain.write_as_its_programs(domain, team, NAME)
    before, children, indexes = (
        containers(team),
        uids(domain, team),
        compute_domains.node_indexes(team, NAME),
    )
    daemons = domain.daemons()

    compute_domains.scale_controller(rack, 1)
    compute_domains.wait_leader(rack)
    compute_domains.wait_ready(team, NAME, len(NODES), SETTLED_S)
    rack.driver_namespace.wait(lambda: has_probes(domain), "the DaemonSet to be ours", SETTLED_S)
    assert uids(domain, team) == children
    assert domain.daemons() == daemons
    assert compute_domains.node_indexes(team, NAME) == indexes
    assert containers(team) == before

    # A daemon of ours replaces one of theirs, under the same index.
    rack.driver_namespace.delete("pod", daemons["node-1"])
    compute_domains.wait_ready(team, NAME, len(NODES), SETTLED_S)
    assert compute_domains.node_indexes(team, NAME) == indexes
    for node in NODES:
        assert compute_domains.channels(team, node) == {"channel0"}

    team.delete("pod", *NODES)
    team.delete("computedomain", NAME)
    domain.wait_gone()
    compute_domains.wait_released(rack)


def has_probes(domain: Domain) -> str | None:
    (daemonset,) = domain.objects("daemonsets")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    probes = [each for each in container if each.endswith("Probe")]
    path = container.get("readinessProbe", {}).get("httpGet", {}).get("path")
    return None if probes == ["readinessProbe"] and path == "/readyz" else f"it has {probes}"
