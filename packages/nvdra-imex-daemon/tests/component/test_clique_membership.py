# SPDX-License-Identifier: Apache-2.0
"""Real daemons with a real API server, without IMEX: which daemon has which index."""

import signal
import urllib.error

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_objects import CLIQUE
from nvdra_testing.node.imex_daemons import MAX_NODES, Rack

FOUR = ("node-a", "node-b", "node-c", "node-d")


def test_daemons_that_start_together_get_different_indexes_and_know_each_other(rack: Rack) -> None:
    for node in FOUR:
        rack.start_pod(node)
    rack.wait_joined(*FOUR)
    assert sorted(rack.indexes().values()) == [0, 1, 2, 3]
    clique = rack.clique()
    assert clique["metadata"]["labels"] == {
        "resource.nvidia.com/computeDomain": rack.uid,
        "resource.nvidia.com/computeDomain.cliqueID": CLIQUE,
    }
    owners = {(each["kind"], each["uid"]) for each in clique["metadata"]["ownerReferences"]}
    assert owners == {("Pod", pod.uid) for pod in rack.pods}
    for pod in rack.pods:
        assert rack.entries()[pod.node]["podUID"] == pod.uid
        assert rack.entries()[pod.node]["ipAddress"] == pod.ip
        assert (
            (pod.directory / "hosts").read_text().startswith("# Kubernetes-managed hosts file.\n")
        )
        assert pod.resident_mib() <= 80


def test_the_pod_has_a_label_with_its_clique(rack: Rack) -> None:
    pod = rack.start_pod("node-a")
    path = f"/api/v1/namespaces/{rack.namespace}/pods/{pod.name}"

    def label() -> str | None:
        labels = rack.server.request("GET", path)["metadata"].get("labels", {})
        return labels.get("resource.nvidia.com/computeDomain.cliqueID")  # type: ignore[no-any-return]

    rack.wait_until(lambda: label() == CLIQUE, "the label")


def test_a_killed_daemon_gets_its_index_back_with_another_address(rack: Rack) -> None:
    first, second = rack.start_pod("node-a"), rack.start_pod("node-b")
    rack.wait_joined("node-a", "node-b")
    before = rack.indexes()
    first.stop(signal.SIGKILL)
    third = rack.start_pod("node-c")
    rack.wait_joined("node-a", "node-b", "node-c")
    again = rack.start_pod("node-a")
    rack.wait_until(
        lambda: rack.entries()["node-a"]["podUID"] == again.uid, "the successor's entry"
    )
    rack.wait_joined("node-a", "node-b", "node-c")
    assert rack.entries()["node-a"]["ipAddress"] == again.ip != first.ip
    assert {node: rack.indexes()[node] for node in before} == before
    assert second.hosts_entries() == third.hosts_entries() == again.hosts_entries()


def test_a_restarted_container_takes_its_entry_back(rack: Rack) -> None:
    first, _ = rack.start_pod("node-a"), rack.start_pod("node-b")
    rack.wait_joined("node-a", "node-b")
    before = rack.indexes()
    first.stop(signal.SIGKILL)
    again = rack.run_daemon("node-a", first.name, first.uid)
    rack.wait_until(lambda: rack.entries()["node-a"]["ipAddress"] == again.ip, "the new address")
    rack.wait_joined("node-a", "node-b")
    assert rack.indexes() == before


def test_a_stopped_daemon_leaves_and_its_index_is_free(rack: Rack) -> None:
    for node in FOUR[:3]:
        rack.start_pod(node)
        rack.wait_until(lambda node=node: node in rack.entries(), node)  # type: ignore[misc]
    assert rack.indexes() == {"node-a": 0, "node-b": 1, "node-c": 2}
    assert rack.pods[1].stop() == 0
    assert set(rack.entries()) == {"node-a", "node-c"}
    assert "Left the domain" in rack.pods[1].log()
    rack.wait_joined("node-a", "node-c")
    rack.start_pod("node-d")
    rack.wait_joined("node-a", "node-c", "node-d")
    assert rack.indexes() == {"node-a": 0, "node-d": 1, "node-c": 2}


def test_a_running_predecessor_does_not_take_its_entry_back(rack: Rack) -> None:
    old = rack.start_pod("node-a")
    rack.wait_joined("node-a")
    new = rack.start_pod("node-a")
    rack.wait_until(lambda: rack.entries()["node-a"]["podUID"] == new.uid, "the successor's entry")
    rack.wait_until(
        lambda: "its predecessor" in str(old.status().get("lacks")), "the old one to see it"
    )
    rack.wait_until(
        lambda: "ImexBinaryMissing" in str(rack.entries()), "the new one to say what it lacks"
    )
    version = rack.clique()["metadata"]["resourceVersion"]
    assert old.stop() == 0
    assert rack.entries()["node-a"]["podUID"] == new.uid
    assert rack.clique()["metadata"]["resourceVersion"] == version


def test_a_deleted_clique_is_created_again_with_the_same_indexes(rack: Rack) -> None:
    for node in FOUR:
        rack.start_pod(node)
    rack.wait_joined(*FOUR)
    before, uid = rack.indexes(), rack.clique()["metadata"]["uid"]
    rack.server.request("DELETE", rack.clique_path)
    rack.wait_until(
        lambda: rack.clique().get("metadata", {}).get("uid") not in (None, uid), "a new one"
    )
    rack.wait_joined(*FOUR)
    assert rack.indexes() == before


def test_daemons_that_are_all_replaced_at_once_get_their_indexes_back(
    rack: Rack,
) -> None:
    for node in FOUR:
        rack.start_pod(node)
    rack.wait_joined(*FOUR)
    before, names = rack.indexes(), set(rack.expected_hosts_entries())
    for pod in rack.pods:
        assert pod.stop() == 0
    assert rack.entries() == {}
    rack.server.request("DELETE", rack.clique_path)
    for node in sorted(FOUR, key=lambda node: before[node], reverse=True):
        rack.start_pod(node)
        rack.wait_until(lambda node=node: node in rack.entries(), node)  # type: ignore[misc]
    rack.wait_joined(*FOUR)
    assert rack.indexes() == before
    assert set(rack.expected_hosts_entries()) == names


def test_an_entry_that_somebody_removes_is_restored(rack: Rack) -> None:
    rack.start_pod("node-a"), rack.start_pod("node-b")
    rack.wait_joined("node-a", "node-b")
    before, clique = rack.indexes(), rack.clique()
    clique["daemons"] = [each for each in clique["daemons"] if each["nodeName"] != "node-a"]
    del clique["metadata"]["labels"]
    rack.server.request("PUT", rack.clique_path, clique)
    rack.wait_joined("node-a", "node-b")
    assert rack.indexes() == before
    rack.wait_until(lambda: rack.clique()["metadata"].get("labels"), "its labels")


@pytest.mark.soak
def test_an_outage_of_the_api_server_only_delays(rack: Rack) -> None:
    first = rack.start_pod("node-a")
    rack.wait_joined("node-a")
    rack.server.stop()
    second = rack.run_daemon("node-b", first.name, "uid-of-node-b")
    seen: list[tuple[int, str]] = []

    def told() -> bool:
        seen.append(second.get("/readyz"))
        return "ApiUnavailable" in seen[-1][1]

    rack.wait_until(told, "the reason in its probe")
    assert {code for code, _ in seen} <= {0, 503}
    assert first.process.poll() is None
    rack.server.start()
    rack.wait_joined("node-a", "node-b")
    assert rack.indexes() == {"node-a": 0, "node-b": 1}


def test_an_invalid_entry_does_not_affect_others(rack: Rack) -> None:
    rack.start_pod("node-a")
    rack.wait_joined("node-a")
    clique = rack.clique()
    clique["daemons"].append(
        {"nodeName": "bad", "ipAddress": "10.4.0.1", "cliqueID": CLIQUE, "index": 77}
    )
    rack.server.request("PUT", rack.clique_path, clique)
    second = rack.start_pod("node-b")
    rack.wait_until(lambda: second.status().get("leftOut"), "the complaint")
    assert "index 77, allowed are 0 to 3" in second.status()["leftOut"][0]
    rack.wait_until(lambda: len(second.hosts_entries()) == 2, "the names of the others")
    assert rack.indexes()["node-b"] == 1


def test_a_daemon_waits_while_the_clique_is_full(rack: Rack) -> None:
    for node in FOUR:
        rack.start_pod(node)
    rack.wait_joined(*FOUR)
    assert len(FOUR) == MAX_NODES
    fifth = rack.start_pod("node-e")
    rack.wait_until(
        lambda: len(rack.events("DomainFull")) == 2, "Events of the pod and of the domain"
    )
    kinds = {event["involvedObject"]["kind"] for event in rack.events("DomainFull")}
    assert kinds == {"Pod", "ComputeDomain"}
    assert "room for 4 nodes" in rack.events("DomainFull")[0]["message"]
    assert fifth.get("/readyz")[0] == 503
    assert "DomainFull" in fifth.get("/readyz")[1]
    rack.pods[2].stop()
    rack.wait_joined("node-a", "node-b", "node-d", "node-e")


def test_the_entry_of_a_reference_daemon_is_kept(rack: Rack) -> None:
    theirs = {
        "nodeName": "theirs",
        "ipAddress": "10.4.9.9",
        "cliqueID": CLIQUE,
        "index": 0,
        "status": "Ready",
    }
    rack.server.create(
        rack.clique_path.rpartition("/")[0],
        {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomainClique",
            "metadata": {"name": f"{rack.uid}.{CLIQUE}"},
            "daemons": [theirs],
        },
    )
    ours = rack.start_pod("node-a")
    rack.wait_joined("theirs", "node-a")
    assert rack.indexes()["node-a"] == 1
    assert ours.stop() == 0
    assert rack.clique()["daemons"] == [theirs]


def test_a_daemon_on_a_node_without_fabric_only_labels_its_pod(rack: Rack) -> None:
    pod = rack.start_pod("node-a", clique="")
    rack.wait_until(pod.is_ready, "it to be ready")
    assert "no NVLink fabric" in pod.get("/readyz?verbose")[1]
    path = f"/api/v1/namespaces/{rack.namespace}/pods/{pod.name}"

    def labels() -> dict[str, str]:
        return dict(rack.server.request("GET", path)["metadata"].get("labels", {}))

    rack.wait_until(
        lambda: labels().get("resource.nvidia.com/computeDomain.cliqueID") == "", "label"
    )
    assert pod.hosts_entries() == {}
    assert pod.stop() == 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        rack.server.request("GET", rack.clique_path)


def test_nothing_is_requested_while_nothing_changes_in_the_clique(
    rack: Rack, server: ApiServer
) -> None:
    del server
    pod = rack.start_pod("node-a")
    rack.wait_joined("node-a")
    rack.wait_until(
        lambda: "ImexBinaryMissing" in rack.entries()["node-a"]["message"], "the reason"
    )

    def requests() -> float:
        lines = pod.get("/metrics")[1].splitlines()
        counts = (line for line in lines if line.startswith("nvdra_api_requests_seconds_count"))
        return sum(float(line.rpartition(" ")[2]) for line in counts)

    rack.wait_until(lambda: len(rack.events("ImexBinaryMissing")) == 2, "both Events")
    before, version = requests(), rack.clique()["metadata"]["resourceVersion"]
    with pytest.raises(AssertionError):
        rack.wait_until(lambda: requests() > before + 1, "nothing", timeout_s=8)
    assert rack.clique()["metadata"]["resourceVersion"] == version
