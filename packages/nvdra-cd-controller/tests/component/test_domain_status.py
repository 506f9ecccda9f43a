# SPDX-License-Identifier: Apache-2.0
"""The status follows the daemons, which the test simulates: they join, fail, return and leave."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from nvdra_api import names
from nvdra_cd_controller.informers import MAX_UNNAMED_CLIQUES
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

CLIQUE_LABEL = "resource.nvidia.com/computeDomain.cliqueID"

pytestmark = pytest.mark.usefixtures("controlled")


def entry(node: str, pod: dict[str, Any], index: int, status: str = "Ready", **more: Any) -> Any:
    uid, ip = pod["metadata"]["uid"], pod["status"]["podIP"]
    return {**domain_objects.clique_entry(node, index, status, podUID=uid, **more), "ipAddress": ip}


async def test_a_domain_forms_node_by_node(world: DriverInstallation) -> None:
    world.create_domain(numNodes=2)
    uid = await world.wait_children_ready()
    assert world.condition("Ready")[:2] == ("False", "NodesMissing")

    a = world.create_labelled_node("a", uid)
    await wait_until(lambda: world.condition("Ready")[2].endswith(f"{a}: it has no daemon pod yet"))
    pod_a = world.create_running_daemon_pod(a, uid)
    await wait_until(lambda: world.condition("Ready")[2].endswith("its daemon has not joined yet"))
    world.write_clique_entries(uid, entry(a, pod_a, 0, "NotReady", message="IMEX is starting"))
    await wait_until(lambda: world.condition("Ready")[2].endswith(f"{a}: IMEX is starting"))
    world.write_clique_entries(uid, entry(a, pod_a, 0))
    await wait_until(lambda: world.condition("Ready")[1] == "NodesMissing")
    assert (world.status()["readyNodes"], world.status()["expectedNodes"]) == (1, 2)

    b = world.create_labelled_node("b", uid)
    pod_b = world.create_running_daemon_pod(b, uid, 1)
    world.write_clique_entries(uid, entry(a, pod_a, 0), entry(b, pod_b, 1))
    await wait_until(lambda: world.status()["status"] == "Ready")
    assert world.status()["nodes"] == [
        {
            "name": node,
            "ipAddress": pod["status"]["podIP"],
            "cliqueID": domain_objects.CLIQUE,
            "index": index,
            "status": "Ready",
        }
        for index, (node, pod) in enumerate([(a, pod_a), (b, pod_b)])
    ]
    assert world.condition("Ready") == ("True", "AllNodesReady", "2 of 2 nodes are ready")
    await wait_until(lambda: world.events())
    assert world.events() == [("Normal", "AllNodesReady", "2 of 2 nodes are ready")]


async def test_a_replaced_daemon_keeps_its_index_and_is_not_ready_until_it_reports(
    world: DriverInstallation,
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    a = world.create_labelled_node("a", uid)
    first = world.create_running_daemon_pod(a, uid)
    world.write_clique_entries(uid, entry(a, first, 3))
    await wait_until(lambda: world.status()["readyNodes"] == 1)

    world.remove_pod(first)
    await wait_until(lambda: world.status()["status"] == "NotReady")
    assert world.condition("Ready")[2].endswith("its daemon's pod is gone")
    second = world.create_running_daemon_pod(a, uid, 1)
    await wait_until(
        lambda: world.condition("Ready")[2].endswith("its new daemon has not joined yet")
    )
    assert world.clique_indexes(uid) == {a: 3}
    world.write_clique_entries(uid, entry(a, second, 3))
    await wait_until(lambda: world.status()["status"] == "Ready")


def stopped(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
    """The pod as the API server has it when its container or its node stopped."""
    condition = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    state = {"name": "compute-domain-daemon", "image": "daemon:1", "imageID": "", **container}
    return {**pod["status"], "conditions": [condition], "containerStatuses": [state]}


RUNNING = {"ready": True, "restartCount": 0, "state": {"running": {}}}
CRASHED = {
    "ready": False,
    "restartCount": 3,
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}},
    "lastState": {"terminated": {"exitCode": 1}},
}


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (RUNNING, "its daemon's pod is not ready any more: ContainersNotReady"),
        (CRASHED, "CrashLoopBackOff: back-off 40s restarting"),
    ],
    ids=["the tray is powered off", "the daemon crashes"],
)
async def test_a_daemon_whose_pod_is_not_ready_any_more_does_not_count(
    world: DriverInstallation, container: dict[str, Any], words: str
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    a = world.create_labelled_node("a", uid)
    pod = world.create_running_daemon_pod(a, uid)
    world.write_clique_entries(uid, entry(a, pod, 0))
    await wait_until(lambda: world.status()["readyNodes"] == 1)

    path = f"/api/v1/namespaces/{world.driver_namespace}/pods/{pod['metadata']['name']}/status"
    world.server.request("PUT", path, {**pod, "status": stopped(pod, container)})
    await wait_until(lambda: world.status()["status"] == "NotReady")
    assert world.status()["readyNodes"] == 0
    assert world.status()["nodes"][0]["status"] == "NotReady"
    assert world.condition("Ready")[1:] == (
        "DaemonsNotReady",
        f"0 of 1 node is ready; {a}: {words}",
    )

    again = world.server.request("GET", path)
    world.server.request("PUT", path, {**again, "status": pod["status"]})
    await wait_until(lambda: world.status()["status"] == "Ready")


async def test_the_entry_of_a_departed_node_is_removed(world: DriverInstallation) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    a, b = world.create_labelled_node("a", uid), world.create_labelled_node("b", uid)
    pod_a, pod_b = (
        world.create_running_daemon_pod(a, uid),
        world.create_running_daemon_pod(b, uid, 1),
    )
    world.write_clique_entries(uid, entry(a, pod_a, 0), entry(b, pod_b, 1))
    await wait_until(lambda: world.status()["readyNodes"] == 2)

    world.server.request("DELETE", f"/api/v1/nodes/{a}")
    world.remove_pod(pod_a)
    await wait_until(lambda: world.clique_indexes(uid) == {b: 1})
    await wait_until(lambda: [each["name"] for each in world.status()["nodes"]] == [b])
    assert world.status()["status"] == "Ready"


async def test_the_list_of_nodes_is_removed_with_the_last_node(
    world: DriverInstallation,
) -> None:
    world.create_domain(numNodes=1)
    uid = await world.wait_children_ready()
    assert "nodes" not in world.status()
    a = world.create_labelled_node("a", uid)
    pod = world.create_running_daemon_pod(a, uid)
    world.write_clique_entries(uid, entry(a, pod, 0))
    await wait_until(lambda: world.status()["status"] == "Ready")

    # As when a workload ends: first the label is removed, then the entry, and the pod last.
    world.server.request("DELETE", f"/api/v1/nodes/{a}")
    world.write_clique_entries(uid)
    path = f"/api/v1/namespaces/{world.driver_namespace}/pods/{pod['metadata']['name']}"
    world.server.request("DELETE", path, {"gracePeriodSeconds": 30})
    await wait_until(
        lambda: (
            "nodes" not in world.status()
            and world.condition("Ready")[:2] == ("False", "NodesMissing")
        ),
        timeout_s=20,
    )


async def test_a_node_without_fabric_is_a_member_by_its_pod(world: DriverInstallation) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    box = world.create_labelled_node("box", uid)
    pod = world.create_running_daemon_pod(box, uid, 0, **{CLIQUE_LABEL: ""})

    await wait_until(lambda: world.status().get("nodes"))
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
            domain_objects.image_pull_backoff_status("Back-off pulling image"),
            "ImagePullBackOff: Back-off pulling image",
        ),
        (
            domain_objects.unschedulable_pod_status(
                "0/4 nodes are available: 1 Insufficient memory"
            ),
            "Unschedulable: 0/4 nodes are available: 1 Insufficient memory",
        ),
    ],
    ids=["its image cannot be pulled", "no node fits"],
)
async def test_the_domain_says_why_a_daemons_pod_does_not_start(
    world: DriverInstallation, status: dict[str, Any], words: str
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    a = world.create_labelled_node("a", uid)
    world.create_pending_daemon_pod(a, uid, status)

    said = f"{a}: {words}"
    await wait_until(lambda: world.condition("Degraded") == ("True", "DaemonPodsFailing", said))
    assert world.condition("Ready")[:2] == ("False", "DaemonsNotReady")
    await wait_until(lambda: world.events())
    assert world.events()[0] == ("Warning", "DaemonPodsFailing", said)


@pytest.mark.parametrize(
    "words",
    [
        "ImexBinaryMissing: nvidia-imex is not there; install nvidia-imex on the node",
        "nvidia-imex says WAITING_FOR_RECOVERY",
    ],
)
async def test_the_domain_shows_a_daemons_message(world: DriverInstallation, words: str) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    a = world.create_labelled_node("a", uid)
    world.write_clique_entries(
        uid, entry(a, world.create_running_daemon_pod(a, uid), 0, "NotReady", message=words)
    )

    said = f"0 of 1 node is ready; {a}: {words}"
    await wait_until(lambda: world.condition("Ready") == ("False", "DaemonsNotReady", said))
    assert world.status()["status"] == "NotReady"


async def test_a_domain_whose_nodes_are_not_connected_is_ready_and_degraded(
    world: DriverInstallation,
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    nodes = [world.create_labelled_node(name, uid) for name in ("a", "b")]
    pods = [world.create_running_daemon_pod(node, uid, at) for at, node in enumerate(nodes)]
    world.write_clique_entries(uid, *(entry(node, pods[at], at) for at, node in enumerate(nodes)))
    await wait_until(lambda: world.status()["readyNodes"] == 2)
    assert world.condition("Degraded")[0] == "False"

    broken = json.dumps({"broken": {nodes[1]: "VERSION_MISMATCH"}})
    world.annotate_pod(pods[0], {names.LINKS_ANNOTATION: broken})
    told = f"{nodes[0]} cannot talk to {nodes[1]} (VERSION_MISMATCH)"
    await wait_until(lambda: world.condition("Degraded") == ("True", "ImexLinksBroken", told))
    assert world.status()["status"] == "Ready"
    await wait_until(lambda: ("Warning", "ImexLinksBroken", told) in world.events())

    world.annotate_pod(pods[0], {})
    await wait_until(lambda: world.condition("Degraded")[:2] == ("False", "AsExpected"))


async def test_a_daemon_of_the_reference_driver_shares_a_clique_with_ours(
    world: DriverInstallation,
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    a, b = world.create_labelled_node("a", uid), world.create_labelled_node("b", uid)
    ours, theirs = (
        world.create_running_daemon_pod(a, uid),
        world.create_running_daemon_pod(b, uid, 1),
    )
    their_entry = entry(b, theirs, 1)
    del their_entry["podUID"]
    world.write_clique_entries(uid, entry(a, ours, 0), their_entry)

    await wait_until(lambda: world.status()["readyNodes"] == 2)
    assert world.status()["status"] == "Ready"
    assert world.clique_indexes(uid) == {a: 0, b: 1}


async def test_debug_status_and_metrics_show_the_domains(
    world: DriverInstallation, controlled: ControllerProcess
) -> None:
    not_ready = 'nvidia_dra_compute_domain_info{status="NotReady"}'
    others = controlled.metric(not_ready)
    world.create_domain(numNodes=2)
    uid = await world.wait_children_ready()
    a = world.create_labelled_node("a", uid)
    pod = world.create_running_daemon_pod(a, uid)
    world.write_clique_entries(uid, entry(a, pod, 0))
    await wait_until(lambda: world.status()["readyNodes"] == 1)
    await wait_until(lambda: controlled.metric('nvdra_compute_domain_members{state="ready"}') == 1)

    assert controlled.metric('nvdra_compute_domain_members{state="lacking"}') == 1
    assert controlled.metric(not_ready) == others + 1
    children = 'nvdra_compute_domain_phase_seconds_count{phase="children"}'
    assert controlled.metric(children) >= 1
    known = json.loads(controlled.get("/debug/status", debug=True))["domains"]
    assert next(each for each in known if each["uid"] == uid) == {
        "namespace": world.user_namespace,
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

    b = world.create_labelled_node("b", uid)
    world.write_clique_entries(
        uid, entry(a, pod, 0), entry(b, world.create_running_daemon_pod(b, uid, 1), 1)
    )
    await wait_until(lambda: world.status()["status"] == "Ready")
    formed = "nvdra_compute_domain_formation_seconds_count"  # counted after the status is written
    await wait_until(lambda: controlled.metric(formed) == 1)
    world.delete_domain()
    await wait_until(lambda: world.domain() is None)
    gone = 'nvdra_compute_domain_phase_seconds_count{phase="teardown"}'
    await wait_until(lambda: controlled.metric(gone) == 1)
    await wait_until(lambda: controlled.metric(not_ready) == others)


@pytest.mark.parametrize("age_s", [0, 3600])
async def test_a_daemon_that_does_not_reach_the_api_server_degrades_its_domain_after_a_minute(
    world: DriverInstallation, age_s: int
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    a = world.create_labelled_node("a", uid)
    pod = world.create_running_daemon_pod(a, uid)
    since = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    running = {"ready": True, "restartCount": 0, "state": {"running": {"startedAt": since}}}
    path = f"/api/v1/namespaces/{world.driver_namespace}/pods/{pod['metadata']['name']}/status"
    status = {**stopped(pod, running), "conditions": pod["status"]["conditions"]}
    world.server.request("PUT", path, {**pod, "status": status})
    words = (
        f"{a}: its daemon runs since {since} and has not joined yet; if this stays, it does not "
    )
    await wait_until(lambda: words in world.condition("Ready")[2])
    is_degraded, reason, text = world.condition("Degraded")
    assert (is_degraded, reason) == (
        ("True", "DaemonPodsFailing") if age_s else ("False", "AsExpected")
    )
    assert ("check the network policies" in text) == bool(age_s)


async def test_of_any_number_of_cliques_those_are_read_that_pods_name(
    world: DriverInstallation,
) -> None:
    """Whoever has a daemon's token can make any number. They are of a node of the domain."""
    world.create_domain()
    uid = await world.wait_children_ready()
    node = world.create_labelled_node("a", uid)
    label = {CLIQUE_LABEL: domain_objects.CLIQUE}
    pod = world.create_running_daemon_pod(node, uid, 0, **label)
    path = domain_objects.cliques_path(world.driver_namespace)
    for number in range(MAX_UNNAMED_CLIQUES + 44):
        clique_id = f"{UUID(int=number)}.1"
        made_up = {**entry(node, pod, 3), "cliqueID": clique_id}
        world.server.create(path, domain_objects.clique(uid, made_up, clique_id=clique_id))
    world.write_clique_entries(uid, entry(node, pod, 0))
    await wait_until(lambda: world.condition("Degraded")[1] == "TooManyCliques")
    assert world.status()["status"] == "Ready"
