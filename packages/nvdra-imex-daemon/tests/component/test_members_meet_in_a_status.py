"""Without cliques: members in the domain's status, by name or, without DNS names, by address."""

import pytest
from domains import CLIQUE, Json, domains_path
from imexd import Pod, Rack

BY_NAME = "--feature-gates=ComputeDomainCliques=false"
BY_ADDRESS = "--feature-gates=ComputeDomainCliques=false,IMEXDaemonsWithDNSNames=false"


def status(rack: Rack) -> Json:
    metadata = rack.domain["metadata"]
    found = rack.server.call("GET", domains_path(metadata["namespace"], metadata["name"]))
    known: Json = found.get("status", {})
    return known


def nodes(rack: Rack) -> dict[str, Json]:
    return {node["name"]: node for node in status(rack).get("nodes", ())}


def are_ready(rack: Rack, *names: str) -> bool:
    known = nodes(rack)
    return set(known) == set(names) and all(each["status"] == "Ready" for each in known.values())


def listed(pod: Pod) -> list[str]:
    return (pod.imexd / "nodes.cfg").read_text().splitlines()


def test_members_write_themselves_into_the_status_and_take_themselves_out(rack: Rack) -> None:
    rack.equip("node-a", "node-b")
    first, second = rack.start("node-a", BY_NAME), rack.start("node-b", BY_NAME)
    rack.until(lambda: are_ready(rack, "node-a", "node-b"), "both to be Ready")
    assert sorted(node["index"] for node in nodes(rack).values()) == [0, 1]
    assert {node["cliqueID"] for node in nodes(rack).values()} == {CLIQUE}
    wanted = {
        f"compute-domain-daemon-{n['index']:04d}": n["ipAddress"] for n in nodes(rack).values()
    }
    rack.until(lambda: first.names() == second.names() == wanted, "the names of both")
    assert rack.clique() == {}
    assert first.stop() == 0
    assert set(nodes(rack)) == {"node-b"}


@pytest.mark.parametrize("rack", [{"numNodes": 2}], indirect=True)
def test_by_address_imex_starts_when_all_are_there_and_anew_when_one_changes(rack: Rack) -> None:
    rack.equip("node-a", "node-b")
    first = rack.start("node-a", BY_ADDRESS)
    rack.until(lambda: "1 of the 2 nodes" in str(first.status().get("lacks")), "it to wait")
    assert first.status()["imex"]["starts"] == 0
    second = rack.start("node-b", BY_ADDRESS)
    rack.until(lambda: are_ready(rack, "node-a", "node-b"), "both to be Ready")
    assert listed(first) == listed(second) == [first.ip, second.ip]
    assert first.names() == {}
    rack.until(lambda: len(first.imex_pids()) == 1, "one IMEX")
    before = first.status()["imex"]["starts"]
    assert second.stop() == 0
    again = rack.start("node-b", BY_ADDRESS)
    rack.until(lambda: listed(first) == [first.ip, again.ip], "the new list")
    rack.until(lambda: first.status()["imex"]["starts"] == before + 1, "another IMEX")
    rack.until(lambda: are_ready(rack, "node-a", "node-b"), "both to be Ready again")


def test_a_domain_that_is_gone_is_said_to_be(rack: Rack) -> None:
    metadata = rack.domain["metadata"]
    rack.server.call("DELETE", domains_path(metadata["namespace"], metadata["name"]))
    pod = rack.start("node-a", BY_NAME)
    rack.until(lambda: "DomainNotFound" in pod.get("/readyz")[1], "the reason")
    rack.until(
        lambda: any(
            event["involvedObject"]["kind"] == "Pod" for event in rack.events("DomainNotFound")
        ),
        "its Event",
    )
    assert pod.stop() == 0
