"""Daemons, played by the test, join, fail, come back and leave; the status follows."""

import json
from typing import Any

import domains
import pytest
from cd_world import World
from controller import Controller
from waiting import until

CLIQUE_LABEL = "resource.nvidia.com/computeDomain.cliqueID"

pytestmark = pytest.mark.usefixtures("controlled")


def entry(node: str, pod: dict[str, Any], index: int, status: str = "Ready", **more: Any) -> Any:
    uid, ip = pod["metadata"]["uid"], pod["status"]["podIP"]
    return {**domains.entry(node, index, status, podUID=uid, **more), "ipAddress": ip}


async def test_a_domain_forms_node_by_node(world: World) -> None:
    world.create(numNodes=2)
    uid = await world.formed()
    assert world.condition("Ready")[:2] == ("False", "NodesMissing")

    a = world.node("a", uid)
    await until(lambda: world.condition("Ready")[2].endswith(f"{a}: it has no daemon pod yet"))
    pod_a = world.pod(a, uid)
    await until(lambda: world.condition("Ready")[2].endswith("its daemon has not joined yet"))
    world.join(uid, entry(a, pod_a, 0, "NotReady", message="IMEX is starting"))
    await until(lambda: world.condition("Ready")[2].endswith(f"{a}: IMEX is starting"))
    world.join(uid, entry(a, pod_a, 0))
    await until(lambda: world.condition("Ready")[1] == "NodesMissing")
    assert (world.status()["readyNodes"], world.status()["expectedNodes"]) == (1, 2)

    b = world.node("b", uid)
    pod_b = world.pod(b, uid, 1)
    world.join(uid, entry(a, pod_a, 0), entry(b, pod_b, 1))
    await until(lambda: world.status()["status"] == "Ready")
    assert world.status()["nodes"] == [
        {
            "name": node,
            "ipAddress": pod["status"]["podIP"],
            "cliqueID": domains.CLIQUE,
            "index": index,
            "status": "Ready",
        }
        for index, (node, pod) in enumerate([(a, pod_a), (b, pod_b)])
    ]
    assert world.condition("Ready") == ("True", "AllNodesReady", "2 of 2 nodes are ready")
    await until(lambda: world.events())
    assert world.events() == [("Normal", "AllNodesReady", "2 of 2 nodes are ready")]


async def test_a_daemon_that_is_replaced_keeps_its_place_and_is_not_ready_until_it_says_so(
    world: World,
) -> None:
    world.create()
    uid = await world.formed()
    a = world.node("a", uid)
    first = world.pod(a, uid)
    world.join(uid, entry(a, first, 3))
    await until(lambda: world.status()["readyNodes"] == 1)

    world.remove_pod(first)
    await until(lambda: world.status()["status"] == "NotReady")
    assert world.condition("Ready")[2].endswith("its daemon's pod is gone")
    second = world.pod(a, uid, 1)
    await until(lambda: world.condition("Ready")[2].endswith("its new daemon has not joined yet"))
    assert world.places(uid) == {a: 3}
    world.join(uid, entry(a, second, 3))
    await until(lambda: world.status()["status"] == "Ready")


async def test_the_entry_of_a_node_that_is_gone_is_taken_out(world: World) -> None:
    world.create()
    uid = await world.formed()
    a, b = world.node("a", uid), world.node("b", uid)
    pod_a, pod_b = world.pod(a, uid), world.pod(b, uid, 1)
    world.join(uid, entry(a, pod_a, 0), entry(b, pod_b, 1))
    await until(lambda: world.status()["readyNodes"] == 2)

    world.server.call("DELETE", f"/api/v1/nodes/{a}")
    world.remove_pod(pod_a)
    await until(lambda: world.places(uid) == {b: 1})
    await until(lambda: [each["name"] for each in world.status()["nodes"]] == [b])
    assert world.status()["status"] == "Ready"


async def test_the_list_is_gone_with_the_last_node_within_three_seconds(world: World) -> None:
    world.create(numNodes=1)
    uid = await world.formed()
    assert "nodes" not in world.status()
    a = world.node("a", uid)
    pod = world.pod(a, uid)
    world.join(uid, entry(a, pod, 0))
    await until(lambda: world.status()["status"] == "Ready")

    # In the order of a workload that ends: the label goes, the daemon leaves, its pod takes longer.
    world.server.call("DELETE", f"/api/v1/nodes/{a}")
    world.join(uid)
    path = f"/api/v1/namespaces/{world.driver}/pods/{pod['metadata']['name']}"
    world.server.call("DELETE", path, {"gracePeriodSeconds": 30})
    await until(lambda: "nodes" not in world.status(), timeout_s=3)
    assert world.condition("Ready")[:2] == ("False", "NodesMissing")


async def test_a_node_without_fabric_is_a_member_by_its_pod(world: World) -> None:
    world.create()
    uid = await world.formed()
    box = world.node("box", uid)
    pod = world.pod(box, uid, **{CLIQUE_LABEL: ""})

    await until(lambda: world.status().get("nodes"))
    assert world.status()["nodes"] == [
        {
            "name": box,
            "ipAddress": pod["status"]["podIP"],
            "cliqueID": "",
            "index": -1,
            "status": "Ready",
        }
    ]
    assert (world.status()["status"], world.status()["cliques"]) == ("Ready", 0)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            domains.image_not_pulled("Back-off pulling image"),
            "ImagePullBackOff: Back-off pulling image",
        ),
        (
            domains.no_node_fits("0/4 nodes are available: 1 Insufficient memory"),
            "Unschedulable: 0/4 nodes are available: 1 Insufficient memory",
        ),
    ],
    ids=["its image cannot be pulled", "no node fits"],
)
async def test_why_a_daemons_pod_does_not_start_is_told_on_the_domain(
    world: World, status: dict[str, Any], words: str
) -> None:
    world.create()
    uid = await world.formed()
    a = world.node("a", uid)
    world.stuck_pod(a, uid, status)

    said = f"{a}: {words}"
    await until(lambda: world.condition("Degraded") == ("True", "DaemonPodsFailing", said))
    assert world.condition("Ready")[:2] == ("False", "DaemonsNotReady")
    await until(lambda: world.events())
    assert world.events()[0] == ("Warning", "DaemonPodsFailing", said)


@pytest.mark.parametrize(
    "words",
    [
        "ImexBinaryMissing: nvidia-imex is not there; install nvidia-imex on the node",
        "nvidia-imex says WAITING_FOR_QUORUM",
    ],
)
async def test_what_a_daemon_says_of_itself_is_told_on_the_domain(world: World, words: str) -> None:
    world.create()
    uid = await world.formed()
    a = world.node("a", uid)
    world.join(uid, entry(a, world.pod(a, uid), 0, "NotReady", message=words))

    said = f"0 of 1 node is ready; {a}: {words}"
    await until(lambda: world.condition("Ready") == ("False", "DaemonsNotReady", said))
    assert world.status()["status"] == "NotReady"


async def test_a_daemon_of_the_reference_driver_shares_a_clique_with_ours(world: World) -> None:
    world.create()
    uid = await world.formed()
    a, b = world.node("a", uid), world.node("b", uid)
    ours, theirs = world.pod(a, uid), world.pod(b, uid, 1)
    their_entry = entry(b, theirs, 1)
    del their_entry["podUID"]
    world.join(uid, entry(a, ours, 0), their_entry)

    await until(lambda: world.status()["readyNodes"] == 2)
    assert world.status()["status"] == "Ready"
    assert world.places(uid) == {a: 0, b: 1}


async def test_what_the_controller_knows_is_shown_and_counted(
    world: World, controlled: Controller
) -> None:
    not_ready = 'nvidia_dra_compute_domain_info{status="NotReady"}'
    others = controlled.metric(not_ready)
    world.create(numNodes=2)
    uid = await world.formed()
    a = world.node("a", uid)
    pod = world.pod(a, uid)
    world.join(uid, entry(a, pod, 0))
    await until(lambda: world.status()["readyNodes"] == 1)
    await until(lambda: controlled.metric('nvdra_compute_domain_members{state="ready"}') == 1)

    assert controlled.metric('nvdra_compute_domain_members{state="lacking"}') == 1
    assert controlled.metric(not_ready) == others + 1
    children = 'nvdra_compute_domain_phase_seconds_count{phase="children"}'
    assert controlled.metric(children) >= 1
    known = json.loads(controlled.get("/debug/status", debug=True))["domains"]
    assert next(each for each in known if each["uid"] == uid) == {
        "namespace": world.team,
        "name": "ring",
        "uid": uid,
        "status": "NotReady",
        "readyNodes": 1,
        "expectedNodes": 2,
        "conditions": {
            "Accepted": "Accepted",
            "ChildrenReady": "ChildrenReady",
            "Ready": "NodesMissing",
            "Degraded": "AsExpected",
        },
    }

    b = world.node("b", uid)
    world.join(uid, entry(a, pod, 0), entry(b, world.pod(b, uid, 1), 1))
    await until(lambda: world.status()["status"] == "Ready")
    formed = "nvdra_compute_domain_formation_seconds_count"  # counted after the status is written
    await until(lambda: controlled.metric(formed) == 1)
    world.delete()
    await until(lambda: world.domain() is None)
    gone = 'nvdra_compute_domain_phase_seconds_count{phase="teardown"}'
    await until(lambda: controlled.metric(gone) == 1)
    assert controlled.metric(not_ready) == others
