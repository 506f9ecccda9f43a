# SPDX-License-Identifier: Apache-2.0
"""Without cliques: members in the domain's status, with DNS names or with addresses."""

from pathlib import Path

import pytest
from nvdra_testing.control_plane import controller
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_objects import CLIQUE, Json, domains_path
from nvdra_testing.node.imex_daemons import MAX_NODES, DaemonPod, Rack

BY_NAME = "--feature-gates=ComputeDomainCliques=false"
BY_ADDRESS = "--feature-gates=ComputeDomainCliques=false,IMEXDaemonsWithDNSNames=false"


def status(rack: Rack) -> Json:
    metadata = rack.domain["metadata"]
    found = rack.server.request("GET", domains_path(metadata["namespace"], metadata["name"]))
    known: Json = found.get("status", {})
    return known


def nodes(rack: Rack) -> dict[str, Json]:
    return {node["name"]: node for node in status(rack).get("nodes", ())}


def are_ready(rack: Rack, *names: str) -> bool:
    known = nodes(rack)
    return set(known) == set(names) and all(each["status"] == "Ready" for each in known.values())


def listed(pod: DaemonPod) -> list[str]:
    return (pod.imexd / "nodes.cfg").read_text().splitlines()


def test_members_add_and_remove_their_entries_in_the_status(rack: Rack) -> None:
    rack.install_driver("node-a", "node-b")
    first, second = rack.start_pod("node-a", BY_NAME), rack.start_pod("node-b", BY_NAME)
    rack.wait_until(lambda: are_ready(rack, "node-a", "node-b"), "both to be Ready")
    assert sorted(node["index"] for node in nodes(rack).values()) == [0, 1]
    assert {node["cliqueID"] for node in nodes(rack).values()} == {CLIQUE}
    wanted = {rack.names.name(n["index"]): n["ipAddress"] for n in nodes(rack).values()}
    rack.wait_until(
        lambda: first.hosts_entries() == second.hosts_entries() == wanted, "the names of both"
    )
    assert rack.clique() == {}
    assert first.stop() == 0
    assert set(nodes(rack)) == {"node-b"}


@pytest.mark.parametrize("rack", [{"numNodes": 2}], indirect=True)
def test_by_address_imex_starts_with_all_members_and_restarts_when_one_changes(rack: Rack) -> None:
    rack.install_driver("node-a", "node-b")
    first = rack.start_pod("node-a", BY_ADDRESS)
    rack.wait_until(lambda: "1 of the 2 nodes" in str(first.status().get("lacks")), "it to wait")
    assert first.status()["imex"]["starts"] == 0
    second = rack.start_pod("node-b", BY_ADDRESS)
    rack.wait_until(lambda: are_ready(rack, "node-a", "node-b"), "both to be Ready")
    assert listed(first) == listed(second) == [first.ip, second.ip]
    assert first.hosts_entries() == {}
    rack.wait_until(lambda: len(first.imex_pids()) == 1, "one IMEX")
    before = first.status()["imex"]["starts"]
    assert second.stop() == 0
    again = rack.start_pod("node-b", BY_ADDRESS)
    rack.wait_until(lambda: listed(first) == [first.ip, again.ip], "the new list")
    rack.wait_until(lambda: first.status()["imex"]["starts"] == before + 1, "another IMEX")
    rack.wait_until(lambda: are_ready(rack, "node-a", "node-b"), "both to be Ready again")


def write_address(rack: Rack, pod: DaemonPod) -> None:
    """Write the pod's address into its status, as the kubelet does."""
    path = f"/api/v1/namespaces/{rack.namespace}/pods/{pod.name}/status"
    stored = rack.server.request("GET", path)
    rack.server.request("PUT", path, {**stored, "status": {"phase": "Running", "podIP": pod.ip}})


def starts(pod: DaemonPod) -> int:
    return int(pod.status()["imex"]["starts"])


@pytest.mark.parametrize("rack", [{"numNodes": 2}], indirect=True)
def test_a_controller_that_writes_the_status_restarts_no_imex(
    rack: Rack, server: ApiServer, tmp_path: Path
) -> None:
    rack.install_driver("node-a", "node-b")
    with controller.run_controller(
        server, tmp_path, rack.namespace, f"--max-nodes-per-imex-domain={MAX_NODES}", BY_ADDRESS
    ) as running:
        rack.wait_until(running.is_ready, "the controller")
        second = rack.start_pod("node-b", BY_ADDRESS)
        write_address(rack, second)
        rack.wait_until(lambda: "node-b" in nodes(rack), "its entry")
        first = rack.start_pod("node-a", BY_ADDRESS)
        write_address(rack, first)
        rack.wait_until(lambda: are_ready(rack, "node-a", "node-b"), "both to be Ready")
        rack.wait_until(lambda: status(rack).get("status") == "Ready", "the domain")
        assert [each["name"] for each in status(rack)["nodes"]] == ["node-b", "node-a"]
        assert listed(first) == listed(second) == [second.ip, first.ip]
        assert starts(first) == starts(second) == 1


def test_a_deleted_domain_is_reported(rack: Rack) -> None:
    metadata = rack.domain["metadata"]
    rack.server.request("DELETE", domains_path(metadata["namespace"], metadata["name"]))
    pod = rack.start_pod("node-a", BY_NAME)
    rack.wait_until(lambda: "DomainNotFound" in pod.get("/readyz")[1], "the reason")
    rack.wait_until(
        lambda: any(
            event["involvedObject"]["kind"] == "Pod" for event in rack.events("DomainNotFound")
        ),
        "its Event",
    )
    assert pod.stop() == 0
