"""A user makes a ComputeDomain and pods that claim its channel; the nodes follow the pods."""

import time
from functools import partial

import members
import workloads
from cluster import Cluster
from kubectl import Kubectl
from members import Domain
from nvdra_api.types import names
from otlp import Receiver

RUNNING_S, GONE_S, STATUS_S = 100, 10, 3
ROOM, CHANNELS = 18, 2048
BOTH = ("node-1", "node-2")


def test_a_pod_sees_its_channel_and_its_domain_is_ready_while_it_runs_and_no_longer(
    rack: Cluster, team: Kubectl
) -> None:
    uid = members.apply(team, "ring", nodes=1)
    domain = Domain(rack, uid)
    team.apply(members.worker("w", members.channel_of("ring")))
    team.wait_running("w", timeout_s=RUNNING_S)
    assert members.listed(team, "w") == ["channel0"]
    members.wait_ready(team, "ring", 1, timeout_s=4)
    node = team.get("pod", "w")["spec"]["nodeName"]
    assert domain.nodes() == set(domain.daemons()) == set(members.places(team, "ring")) == {node}
    outgoing = "/proc/sys/net/ipv4/ip_local_port_range"
    first, last = map(int, rack.driver.exec(domain.daemons()[node], "cat", outgoing).split())
    assert not {*range(first, last + 1)} & {*names.IMEX_PORTS}

    # Only the pod goes: the node leaves the domain, its daemon signs off, the status says so.
    began = time.monotonic()
    team.delete("pod", "w")
    assert time.monotonic() - began < GONE_S
    team.wait(lambda: left_of(team), "a status without nodes", STATUS_S)
    assert members.status(team, "ring")["status"] == "NotReady"
    team.wait(lambda: str(domain.entries()) if domain.entries() else None, "no entry", 5)
    team.wait(lambda: ", ".join(domain.nodes()) or None, "no node to be labelled", 5)

    team.delete("computedomain", "ring", timeout_s=GONE_S)
    domain.wait_gone()
    members.wait_released(rack)


def left_of(team: Kubectl) -> str | None:
    """The status that still has nodes, if only an empty list of them."""
    seen = members.status(team, "ring")
    return str(seen) if "nodes" in seen else None


def test_a_domain_of_mode_all_gives_every_channel(rack: Cluster, team: Kubectl) -> None:
    members.apply(team, "ring", mode="All", nodes=1)
    team.apply(members.worker("w", members.channel_of("ring")))
    team.wait_running("w", timeout_s=80)
    listed = set(members.listed(team, "w", CHANNELS))
    assert {"channel0", "channel222", "channel2047"} <= listed
    assert len(listed) == len(members.channels(team, "w")) == CHANNELS
    team.delete("pod", "w")
    team.delete("computedomain", "ring")
    members.wait_released(rack)


def test_pods_on_two_nodes_are_connected_under_names_that_stay(
    rack: Cluster, team: Kubectl
) -> None:
    domain = Domain(rack, members.apply(team, "ring"))
    for node in BOTH:
        team.apply(members.worker(f"on-{node}", members.channel_of("ring"), node))
    team.wait_running(*(f"on-{node}" for node in BOTH))
    members.wait_ready(team, "ring", 2)
    assert sorted(members.places(team, "ring").values()) == [0, 1]
    names = {f"compute-domain-daemon-{index:04}" for index in (0, 1)}

    def lacking(node: str) -> str | None:
        return None if names <= domain.connected(node) else str(domain.imex(node))

    for node in BOTH:
        team.wait(partial(lacking, node), f"{node} to be connected to {names}")
    team.delete("pod", *(f"on-{node}" for node in BOTH))
    team.delete("computedomain", "ring")
    domain.wait_gone()
    members.wait_released(rack)


def test_a_pod_gets_gpus_and_a_channel_of_both_drivers(rack: Cluster, team: Kubectl) -> None:
    members.apply(team, "ring")
    team.apply(workloads.template("four", workloads.gpus(count=4)))
    pod = members.worker("w", members.channel_of("ring"))
    pod["spec"]["resourceClaims"].append({"name": "four", "resourceClaimTemplateName": "four"})
    pod["spec"]["containers"][0]["resources"]["claims"].append({"name": "four"})
    team.apply(pod)
    team.wait_running("w")
    assert len(workloads.view(team, "w").uuids) == 4
    assert members.channels(team, "w") == {"channel0"}
    team.delete("pod", "w")
    team.delete("computedomain", "ring")
    members.wait_released(rack)


def test_a_domain_with_room_for_more_nodes_than_there_are_is_ready_with_those_that_are(
    rack: Cluster, team: Kubectl, rack_collector: Receiver, rack_settings: list[str]
) -> None:
    endpoint = f"--set-string=global.otlp.endpoint={rack_collector.endpoint}"
    rack.install(endpoint)  # and all else by default: a list of 18 names
    try:
        domain = Domain(rack, members.apply(team, "ring"))
        for node in BOTH:
            team.apply(members.worker(f"on-{node}", members.channel_of("ring"), node))
        team.wait_running(*(f"on-{node}" for node in BOTH))
        members.wait_ready(team, "ring", 2)
        for node in BOTH:
            assert members.channels(team, f"on-{node}") == {"channel0"}
            # IMEX itself still waits for the other sixteen, and works meanwhile.
            team.wait(partial(not_degraded, domain, node), f"{node} to work with the other one")
            assert len(domain.imex(node)["nodes"]) == ROOM
        team.delete("pod", *(f"on-{node}" for node in BOTH))
        team.delete("computedomain", "ring")
        domain.wait_gone()
    finally:
        rack.install(*rack_settings)
    members.wait_leader(rack)
    members.wait_released(rack)


def not_degraded(domain: Domain, node: str) -> str | None:
    """What a node's IMEX says, unless that it has some of its peers; at first it has none."""
    seen = domain.imex(node)
    return None if seen.get("status") == "DEGRADED" else str(seen.get("status"))


def test_on_a_node_without_fabric_a_pod_runs_without_channels(rack: Cluster, team: Kubectl) -> None:
    node = "node-2"
    rack.sim(node, "fabric", "all", "--fabric-state", "not_supported")
    try:
        rack.restart_plugin(node)
        domain = Domain(rack, members.apply(team, "ring"))
        team.apply(members.worker("w", members.channel_of("ring"), node))
        team.wait_running("w")
        found = team.exec("w", "find", "/dev", "-name", "null", "-o", "-name", "channel*")
        assert found.split() == ["/dev/null"]
        members.wait_ready(team, "ring", 1)
        (entry,) = members.status(team, "ring")["nodes"]
        assert (entry["name"], entry["cliqueID"], entry["index"]) == (node, "", -1)
        team.delete("pod", "w")
        team.delete("computedomain", "ring")
        domain.wait_gone()
    finally:
        rack.sim(node, "fabric", "all", "--fabric-state", "completed")
        rack.restart_plugin(node)
