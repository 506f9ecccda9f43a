# SPDX-License-Identifier: Apache-2.0
"""A user creates a ComputeDomain and pods that claim its channel; the nodes follow the pods."""

from functools import partial

from nvdra_api import names
from nvdra_api.ids import DomainUID
from nvdra_imex_daemon.configuration import dns_names
from nvdra_testing.cluster import compute_domains, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.telemetry.otlp_receiver import Receiver

RUNNING_S = 100
ROOM, CHANNELS = 18, 2048
BOTH = ("node-1", "node-2")


def test_a_pod_sees_its_channel_and_its_domain_is_ready_while_it_runs_and_no_longer(
    rack: Cluster, team: Kubectl
) -> None:
    uid = compute_domains.create_domain(team, "ring", nodes=1)
    domain = Domain(rack, uid)
    team.apply(compute_domains.channel_pod("w", compute_domains.template_name("ring")))
    team.wait_running("w", timeout_s=RUNNING_S)
    assert compute_domains.listed_channels(team, "w") == ["channel0"]
    compute_domains.wait_ready(team, "ring", 1)
    node = team.get("pod", "w")["spec"]["nodeName"]
    assert (
        domain.labelled_nodes()
        == set(domain.daemons())
        == set(compute_domains.node_indexes(team, "ring"))
        == {node}
    )
    where = {
        names.DOMAIN_NAMESPACE_ANNOTATION: team.namespace,
        names.DOMAIN_NAME_ANNOTATION: "ring",
    }
    for claim in (
        *workloads.claims_of(team, "w"),
        *workloads.claims_of(rack.driver_namespace, domain.daemons()[node]),
    ):
        assert where.items() <= claim["metadata"]["annotations"].items()
    outgoing = "/proc/sys/net/ipv4/ip_local_port_range"
    first, last = map(
        int, rack.driver_namespace.exec(domain.daemons()[node], "cat", outgoing).split()
    )
    assert not {*range(first, last + 1)} & {*names.IMEX_PORTS}

    # Only the pod is deleted: the node leaves the domain and its daemon leaves the status.
    team.delete("pod", "w")
    team.wait(lambda: left_of(team), "a status without nodes")
    assert compute_domains.status(team, "ring")["status"] == "NotReady"
    team.wait(lambda: str(domain.entries()) if domain.entries() else None, "no entry")
    team.wait(lambda: ", ".join(domain.labelled_nodes()) or None, "no node to be labelled")

    team.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


def left_of(team: Kubectl) -> str | None:
    """The status while it still has nodes, even an empty list."""
    seen = compute_domains.status(team, "ring")
    return str(seen) if "nodes" in seen else None


def test_a_domain_of_mode_all_gives_every_channel(rack: Cluster, team: Kubectl) -> None:
    compute_domains.create_domain(team, "ring", mode="All", nodes=1)
    team.apply(compute_domains.channel_pod("w", compute_domains.template_name("ring")))
    team.wait_running("w", timeout_s=80)
    listed = set(compute_domains.listed_channels(team, "w", CHANNELS))
    assert {"channel0", "channel222", "channel2047"} <= listed
    assert len(listed) == len(compute_domains.channels(team, "w")) == CHANNELS
    team.delete("pod", "w")
    team.delete("computedomain", "ring")
    compute_domains.wait_released(rack)


def test_pods_on_two_nodes_are_connected_under_names_that_stay(
    rack: Cluster, team: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, "ring"))
    for node in BOTH:
        team.apply(
            compute_domains.channel_pod(f"on-{node}", compute_domains.template_name("ring"), node)
        )
    team.wait_running(*(f"on-{node}" for node in BOTH))
    compute_domains.wait_ready(team, "ring", 2)
    assert sorted(compute_domains.node_indexes(team, "ring").values()) == [0, 1]
    names = set(dns_names.of_domain(DomainUID(domain.uid), "domain").all(2))

    def lacking(node: str) -> str | None:
        return None if names <= domain.connected_peers(node) else str(domain.imex_status(node))

    for node in BOTH:
        team.wait(partial(lacking, node), f"{node} to be connected to {names}")
    team.delete("pod", *(f"on-{node}" for node in BOTH))
    team.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


def test_a_pod_gets_gpus_and_a_channel_of_both_drivers(rack: Cluster, team: Kubectl) -> None:
    compute_domains.create_domain(team, "ring")
    team.apply(workloads.template("four", workloads.gpus(count=4)))
    pod = compute_domains.channel_pod("w", compute_domains.template_name("ring"))
    pod["spec"]["resourceClaims"].append({"name": "four", "resourceClaimTemplateName": "four"})
    pod["spec"]["containers"][0]["resources"]["claims"].append({"name": "four"})
    team.apply(pod)
    team.wait_running("w")
    assert len(workloads.visible_gpus(team, "w").uuids) == 4
    assert compute_domains.channels(team, "w") == {"channel0"}
    team.delete("pod", "w")
    team.delete("computedomain", "ring")
    compute_domains.wait_released(rack)


def test_a_domain_with_room_for_more_nodes_than_there_are_is_ready_with_those_that_are(
    rack: Cluster, team: Kubectl, rack_collector: Receiver, rack_settings: list[str]
) -> None:
    endpoint = f"--set-string=global.otlp.endpoint={rack_collector.endpoint}"
    rack.install(endpoint)  # all other values are defaults, with a list of 18 names
    compute_domains.wait_leader(rack)  # until then the old leader may still create daemons
    try:
        domain = Domain(rack, compute_domains.create_domain(team, "ring"))
        for node in BOTH:
            team.apply(
                compute_domains.channel_pod(
                    f"on-{node}", compute_domains.template_name("ring"), node
                )
            )
        team.wait_running(*(f"on-{node}" for node in BOTH))
        compute_domains.wait_ready(team, "ring", 2)
        for node in BOTH:
            assert compute_domains.channels(team, f"on-{node}") == {"channel0"}
            # IMEX still waits for the other sixteen, and works in the meantime.
            team.wait(partial(not_degraded, domain, node), f"{node} to work with the other one")
            assert len(domain.wait_imex_status(node)["nodes"]) == ROOM
        team.delete("pod", *(f"on-{node}" for node in BOTH))
        team.delete("computedomain", "ring")
        domain.wait_gone()
    finally:
        rack.install(*rack_settings)
    compute_domains.wait_leader(rack)
    compute_domains.wait_released(rack)


def not_degraded(domain: Domain, node: str) -> str | None:
    """The state of a node's IMEX unless it has some of its peers; at first it has none."""
    seen = domain.imex_status(node)
    return None if seen.get("status") == "DEGRADED" else str(seen.get("status"))


def test_on_a_node_without_fabric_a_pod_runs_without_channels(rack: Cluster, team: Kubectl) -> None:
    node = "node-2"
    try:
        compute_domains.restart_with_fabric(rack, node, "--fabric-state", "not_supported")
        domain = Domain(rack, compute_domains.create_domain(team, "ring"))
        team.apply(compute_domains.channel_pod("w", compute_domains.template_name("ring"), node))
        team.wait_running("w")
        found = team.exec("w", "find", "/dev", "-name", "null", "-o", "-name", "channel*")
        assert found.split() == ["/dev/null"]
        compute_domains.wait_ready(team, "ring", 1)
        (entry,) = compute_domains.status(team, "ring")["nodes"]
        assert (entry["name"], entry["cliqueID"], entry["index"]) == (node, "", -1)
        team.delete("pod", "w")
        team.delete("computedomain", "ring")
        domain.wait_gone()
    finally:
        compute_domains.restart_with_fabric(rack, node, "--fabric-state", "completed")
