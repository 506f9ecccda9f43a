# SPDX-License-Identifier: Apache-2.0
"""A domain with the controller's process and a real API server: created, corrected, deleted."""

import asyncio
from functools import partial
from typing import Any

import pytest
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import LABEL, DriverInstallation
from nvdra_testing.polling import wait_until

OURS = "resource.nvidia.com/computeDomain"

pytestmark = pytest.mark.usefixtures("controlled")


async def test_a_domain_gets_its_three_children(world: DriverInstallation) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()

    assert [each["kind"] for each in world.children(uid)] == [
        "ResourceClaimTemplate",
        "ResourceClaimTemplate",
        "DaemonSet",
    ]
    assert world.status()["status"] == "Ready"
    assert world.condition("Ready")[1] == "NoNodesYet"
    stored = world.domain()
    assert stored is not None
    assert stored["metadata"]["finalizers"] == [OURS]


async def test_nothing_is_left_of_a_domain_that_was_deleted(world: DriverInstallation) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    node = world.create_labelled_node("node-a", uid)
    await wait_until(lambda: world.status()["expectedNodes"] == 1)

    world.delete_domain()
    await wait_until(lambda: world.domain() is None)
    assert world.children(uid) == []
    assert LABEL not in world.node_labels(node)


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_child_that_somebody_deletes_comes_back(
    world: DriverInstallation, which: int
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    path = (
        world.workload_template_path(),
        world.daemon_template_path(uid),
        world.daemonset_path(uid),
    )[which]
    before = world.get(path)
    assert before is not None

    world.server.request("DELETE", path)

    def is_another() -> bool:
        now = world.get(path)
        return now is not None and now["metadata"]["uid"] != before["metadata"]["uid"]

    await wait_until(is_another)
    await wait_until(lambda: len(world.children(uid)) == 3)


async def test_a_daemonset_that_somebody_changes_is_corrected(world: DriverInstallation) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    path = world.daemonset_path(uid)
    changed = world.get(path)
    assert changed is not None
    pod = changed["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "theirs"
    pod["nodeSelector"]["zone"] = "a"
    pod["priorityClassName"] = "system-node-critical"
    changed["metadata"]["finalizers"] = []
    world.server.request("PUT", path, changed)

    def now() -> Any:
        return world.get(path) or {}

    await wait_until(
        lambda: (
            now()["spec"]["template"]["spec"]["containers"][0]["image"]
            == "registry.example.com/daemon:1"
        )
    )
    spec = now()["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {LABEL: uid}
    assert spec["priorityClassName"] == "system-node-critical"
    assert now()["metadata"]["finalizers"] == [OURS]


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_child_that_lost_its_label_gets_it_back(
    world: DriverInstallation, which: int
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    path = (
        world.workload_template_path(),
        world.daemon_template_path(uid),
        world.daemonset_path(uid),
    )[which]
    stored = world.get(path)
    assert stored is not None
    stored["metadata"]["labels"] = {"theirs": "x"}
    world.server.request("PUT", path, stored)

    await wait_until(lambda: (world.get(path) or {})["metadata"]["labels"].get(LABEL) == uid)
    assert world.children(uid)[which]["metadata"]["uid"] == stored["metadata"]["uid"]


async def test_a_taken_name_is_reported_and_the_domain_continues_once_it_is_free(
    world: DriverInstallation,
) -> None:
    path = world.workload_template_path()
    theirs = {
        "metadata": {"name": "ring-channel"},
        "spec": {"spec": {"devices": {}}},
    }
    world.server.create(world.templates_path(world.user_namespace), theirs)
    world.create_domain()

    await wait_until(lambda: world.condition("Accepted")[1] == "NameTaken")
    status, _, message = world.condition("Ready")
    assert status == "False"
    assert (
        f"{world.user_namespace}/ring-channel already exists and belongs to somebody else"
        in message
    )
    assert world.status()["status"] == "NotReady"
    await wait_until(lambda: world.events())
    assert world.events()[0][:2] == ("Warning", "NameTaken")

    world.server.request("DELETE", path)
    await wait_until(lambda: world.condition("Accepted")[0] == "True")
    await wait_until(lambda: world.status()["status"] == "Ready")


async def test_a_domain_with_a_taken_name_can_be_deleted(
    world: DriverInstallation,
) -> None:
    theirs = {"metadata": {"name": "ring-channel"}, "spec": {"spec": {"devices": {}}}}
    world.server.create(world.templates_path(world.user_namespace), theirs)
    world.create_domain()
    await wait_until(lambda: world.condition("Accepted")[1] == "NameTaken")

    world.delete_domain()
    await wait_until(lambda: world.domain() is None)
    assert world.get(world.workload_template_path()) is not None


async def test_of_two_domains_with_the_same_template_name_the_second_waits(
    world: DriverInstallation,
) -> None:
    first = world.create_domain("first", template="shared")
    await world.wait_children_ready("first")
    world.create_domain("second", template="shared")
    await wait_until(lambda: world.condition("Accepted", "second")[1] == "NameTaken")
    assert first["metadata"]["uid"] in world.condition("Accepted", "second")[2]

    world.delete_domain("first")
    await wait_until(lambda: world.status("second").get("status") == "Ready")


async def test_a_deletion_says_what_it_waits_for(world: DriverInstallation) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    path = world.daemonset_path(uid)
    kept = world.get(path)
    assert kept is not None
    kept["metadata"]["finalizers"].append("example.com/theirs")
    world.server.request("PUT", path, kept)

    world.delete_domain()
    await wait_until(lambda: world.condition("Ready")[1] == "Deleting")
    assert world.condition("Ready")[2] == (
        "waiting for deletion of DaemonSet "
        f"{world.driver_namespace}/computedomain-daemon-{uid} "
        "(blocked by other finalizers: example.com/theirs)"
    )
    assert world.status()["status"] == "NotReady"
    assert world.get(world.workload_template_path()) is None

    left = world.get(path)
    assert left is not None
    left["metadata"]["finalizers"] = []
    world.server.request("PUT", path, left)
    await wait_until(lambda: world.domain() is None)


async def test_a_label_that_is_set_after_the_domains_deletion_is_removed(
    world: DriverInstallation,
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    world.delete_domain()
    await wait_until(lambda: world.domain() is None)

    node = world.create_labelled_node("late", uid)
    await wait_until(lambda: LABEL not in world.node_labels(node))


async def test_leftovers_of_a_force_deleted_domain_are_removed(world: DriverInstallation) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    stored = world.domain()
    assert stored is not None
    world.delete_domain()
    orphan = {
        "metadata": {"name": "orphan", "finalizers": [OURS], "labels": {LABEL: uid}},
        "spec": {"spec": {"devices": {}}},
    }
    await wait_until(lambda: world.domain() is None)
    world.server.create(world.templates_path(world.user_namespace), orphan)

    await wait_until(lambda: world.get(world.workload_template_path("orphan")) is None)


async def test_nothing_is_requested_while_nothing_changes(
    world: DriverInstallation, controlled: ControllerProcess
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    node = world.create_labelled_node("node-a", uid)
    pod = world.create_running_daemon_pod(node, uid)
    world.write_clique_entries(
        uid, domain_objects.clique_entry(node, 0, podUID=pod["metadata"]["uid"])
    )
    await wait_until(lambda: world.status()["readyNodes"] == 1)

    def requests() -> float:
        return sum(
            float(line.rpartition(" ")[2])
            for line in controlled.get("/metrics").splitlines()
            if line.startswith("nvdra_api_requests_seconds_count")
        )

    async with asyncio.timeout(30):  # until everything has settled that the last change causes
        while True:
            before = requests()
            await asyncio.sleep(3)
            if requests() == before:
                break


async def test_fifty_domains_are_created_and_deleted(world: DriverInstallation) -> None:
    names = [f"ring-{number}" for number in range(50)]
    uids = {name: world.create_domain(name)["metadata"]["uid"] for name in names}

    def is_ready(name: str) -> bool:
        return bool(world.status(name).get("status") == "Ready")

    for name in names:
        await wait_until(partial(is_ready, name))
        assert len(world.children(uids[name], f"{name}-channel")) == 3

    for name in names:
        world.delete_domain(name)

    def is_deleted(name: str) -> bool:
        return world.domain(name) is None

    for name in names:
        await wait_until(partial(is_deleted, name))
        assert world.children(uids[name], f"{name}-channel") == []


@pytest.mark.parametrize("target", ["Workload", "Daemon"])
async def test_an_object_that_another_tenant_labels_with_the_domains_uid_is_ignored(
    world: DriverInstallation, target: str
) -> None:
    world.create_domain()
    uid = await world.wait_children_ready()
    theirs = domain_objects.create_namespace(world.server, "other")
    labels = {LABEL: uid, "resource.nvidia.com/computeDomainTarget": target}
    body = {
        "metadata": {"name": "x", "labels": labels, "finalizers": ["example.com/theirs"]},
        "spec": {"spec": {"devices": {}}},
    }
    world.server.create(world.templates_path(theirs), body)

    world.delete_domain()
    await wait_until(lambda: world.domain() is None)
    assert world.children(uid) == []
