# SPDX-License-Identifier: Apache-2.0
"""The controller writes the clique for daemons that announce themselves, beside others."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_testing.control_plane import controller, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.node.imex_daemons import MAX_NODES, Rack

ANNOUNCED = "--clique-writer=controller"
ANNOTATION = "nvdra.nvidia.com/imex-daemon"
FOUR = ("node-a", "node-b", "node-c", "node-d")


@pytest.fixture
def running(server: ApiServer, rack: Rack, tmp_path: Path) -> Iterator[ControllerProcess]:
    limit = f"--max-nodes-per-imex-domain={MAX_NODES}"
    with controller.run_controller(server, tmp_path, rack.namespace, limit) as one:
        rack.wait_until(one.is_ready, "the controller")
        yield one


def announced(rack: Rack, number: int) -> dict[str, object]:
    path = f"/api/v1/namespaces/{rack.namespace}/pods/{rack.pods[number].name}"
    metadata = rack.server.request("GET", path)["metadata"]
    assert metadata["labels"]["resource.nvidia.com/computeDomain.cliqueID"] == rack.clique_id
    return dict(json.loads(metadata["annotations"][ANNOTATION]))


@pytest.mark.usefixtures("running")
def test_daemons_join_with_few_writes_and_leave(rack: Rack) -> None:
    for node in FOUR:
        rack.start_pod(node, ANNOUNCED)
    rack.wait_joined(*FOUR)
    assert sorted(rack.indexes().values()) == list(range(4))
    rack.wait_until(
        lambda: all("ImexBinaryMissing" in each["message"] for each in rack.entries().values()),
        "what each lacks",
    )
    clique = rack.clique()
    assert clique["metadata"]["generation"] <= 2 * len(FOUR)
    assert clique["metadata"]["labels"] == {
        "resource.nvidia.com/computeDomain": rack.uid,
        "resource.nvidia.com/computeDomain.cliqueID": rack.clique_id,
    }
    owners = {each["uid"] for each in clique["metadata"]["ownerReferences"]}
    assert owners == {pod.uid for pod in rack.pods}
    for number, pod in enumerate(rack.pods):
        assert rack.entries()[pod.node]["podUID"] == pod.uid
        assert announced(rack, number)["ip"] == pod.ip
    assert rack.pods[1].stop() == 0
    rack.wait_joined("node-a", "node-c", "node-d")
    assert announced(rack, 1)["left"] is True


@pytest.mark.usefixtures("running")
def test_daemons_of_other_releases_and_of_the_reference_driver_share_the_clique(rack: Rack) -> None:
    rack.start_pod("node-a")  # writes itself, like every daemon of an earlier release
    rack.wait_joined("node-a")
    # As in a cluster, the pod is there before its entry: the controller takes nobody for gone.
    pods = f"/api/v1/namespaces/{rack.namespace}/pods"
    label = {"resource.nvidia.com/computeDomain": rack.uid}
    spec = {"nodeName": "theirs", "containers": [{"name": "c", "image": "i"}]}
    rack.server.create(pods, {"metadata": {"name": "theirs", "labels": label}, "spec": spec})
    theirs = domain_objects.clique_entry("theirs", 1)
    clique = rack.clique()
    rack.server.request(
        "PUT", rack.clique_path, {**clique, "daemons": [*clique["daemons"], theirs]}
    )
    rack.start_pod("node-b", ANNOUNCED)
    rack.start_pod("node-c", ANNOUNCED)
    rack.wait_joined("node-a", "theirs", "node-b", "node-c")
    assert rack.entries()["theirs"] == theirs
    assert {node: rack.indexes()[node] for node in ("node-a", "theirs")} == {
        "node-a": 0,
        "theirs": 1,
    }
    assert {rack.indexes()[node] for node in ("node-b", "node-c")} == {2, 3}


@pytest.mark.usefixtures("running")
def test_a_replaced_daemon_gets_its_index_back(rack: Rack) -> None:
    for node in FOUR[:3]:
        rack.start_pod(node, ANNOUNCED)
    rack.wait_joined(*FOUR[:3])
    before = rack.indexes()
    rack.pods[0].stop(signal.SIGKILL)
    again = rack.start_pod("node-a", ANNOUNCED)
    rack.wait_until(lambda: rack.entries()["node-a"]["podUID"] == again.uid, "its entry")
    rack.wait_joined(*FOUR[:3])
    assert rack.indexes() == before


@pytest.mark.usefixtures("running")
def test_a_deleted_clique_is_written_again_with_the_same_indexes(rack: Rack) -> None:
    for node in reversed(FOUR):
        rack.start_pod(node, ANNOUNCED)
        rack.wait_until(lambda node=node: node in rack.entries(), node)  # type: ignore[misc]
    before, uid = rack.indexes(), rack.clique()["metadata"]["uid"]
    rack.wait_until(
        lambda: all(
            announced(rack, number).get("index") == before[pod.node]
            for number, pod in enumerate(rack.pods)
        ),
        "the indexes in what they announce",
    )
    rack.server.request("DELETE", rack.clique_path)
    rack.wait_until(
        lambda: rack.clique().get("metadata", {}).get("uid") not in (None, uid), "a new one"
    )
    rack.wait_joined(*FOUR)
    assert rack.indexes() == before


@pytest.mark.usefixtures("running")
def test_a_daemon_without_room_says_so(rack: Rack) -> None:
    for node in FOUR:
        rack.start_pod(node, ANNOUNCED)
    rack.wait_joined(*FOUR)
    fifth = rack.start_pod("node-e", ANNOUNCED)
    rack.wait_until(lambda: "DomainFull" in fifth.get("/readyz")[1], "the reason")
    rack.pods[2].stop()
    rack.wait_joined("node-a", "node-b", "node-d", "node-e")


def test_daemons_write_their_entries_themselves_while_there_is_no_controller(
    rack: Rack, running: ControllerProcess
) -> None:
    rack.start_pod("node-a", ANNOUNCED)
    rack.wait_joined("node-a")
    running.process.send_signal(signal.SIGSTOP)  # partitioned: it comes back with what it knew
    rack.start_pod("node-b", ANNOUNCED)
    second = rack.pods[1]
    rack.wait_until(
        lambda: "has not put node node-b into the clique" in str(second.status().get("lacks")),
        "what it waits for",
    )
    rack.wait_until(lambda: "node-b" in rack.entries(), "its own write")
    rack.wait_joined("node-a", "node-b")
    before = rack.indexes()
    running.process.send_signal(signal.SIGCONT)
    rack.start_pod("node-c", ANNOUNCED)
    rack.wait_joined("node-a", "node-b", "node-c")
    assert {node: rack.indexes()[node] for node in before} == before
    assert sorted(rack.indexes().values()) == [0, 1, 2]
