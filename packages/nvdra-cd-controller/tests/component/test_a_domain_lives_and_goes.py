"""The controller's process beside a real API server: made, healed, torn down."""

import asyncio
from typing import Any

import domains
import pytest
from cd_world import LABEL, World
from controller import Controller
from waiting import until

OURS = "resource.nvidia.com/computeDomain"

pytestmark = pytest.mark.usefixtures("controlled")


async def test_a_domain_gets_its_three_children_and_says_so(world: World) -> None:
    world.create()
    uid = await world.formed()

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


async def test_nothing_is_left_of_a_domain_that_was_deleted(world: World) -> None:
    world.create()
    uid = await world.formed()
    node = world.node("node-a", uid)
    await until(lambda: world.status()["expectedNodes"] == 1)

    world.delete()
    await until(lambda: world.domain() is None)
    assert world.children(uid) == []
    assert LABEL not in world.labels(node)


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_child_that_somebody_deletes_comes_back(world: World, which: int) -> None:
    world.create()
    uid = await world.formed()
    path = (
        world.workload_template_path(),
        world.daemon_template_path(uid),
        world.daemonset_path(uid),
    )[which]
    before = world.get(path)
    assert before is not None

    world.server.call("DELETE", path)

    def is_another() -> bool:
        now = world.get(path)
        return now is not None and now["metadata"]["uid"] != before["metadata"]["uid"]

    await until(is_another)
    await until(lambda: len(world.children(uid)) == 3)


async def test_a_daemonset_that_somebody_changes_is_put_right(world: World) -> None:
    world.create()
    uid = await world.formed()
    path = world.daemonset_path(uid)
    changed = world.get(path)
    assert changed is not None
    pod = changed["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "theirs"
    pod["nodeSelector"]["zone"] = "a"
    pod["priorityClassName"] = "system-node-critical"
    changed["metadata"]["finalizers"] = []
    world.server.call("PUT", path, changed)

    def now() -> Any:
        return world.get(path) or {}

    await until(
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
async def test_a_child_that_lost_its_label_gets_it_back(world: World, which: int) -> None:
    world.create()
    uid = await world.formed()
    path = (
        world.workload_template_path(),
        world.daemon_template_path(uid),
        world.daemonset_path(uid),
    )[which]
    stored = world.get(path)
    assert stored is not None
    stored["metadata"]["labels"] = {"theirs": "x"}
    world.server.call("PUT", path, stored)

    await until(lambda: (world.get(path) or {})["metadata"]["labels"].get(LABEL) == uid)
    assert world.children(uid)[which]["metadata"]["uid"] == stored["metadata"]["uid"]


async def test_a_name_that_is_taken_is_told_and_the_domain_goes_on_when_it_is_free(
    world: World,
) -> None:
    path = world.workload_template_path()
    theirs = {
        "metadata": {"name": "ring-channel"},
        "spec": {"spec": {"devices": {}}},
    }
    world.server.create(world.templates(world.team), theirs)
    world.create()

    await until(lambda: world.condition("Accepted")[1] == "NameTaken")
    status, _, message = world.condition("Ready")
    assert status == "False"
    assert f"{world.team}/ring-channel is there already and is of somebody else" in message
    assert world.status()["status"] == "NotReady"
    await until(lambda: world.events())
    assert world.events()[0][:2] == ("Warning", "NameTaken")

    world.server.call("DELETE", path)
    await until(lambda: world.condition("Accepted")[0] == "True", timeout_s=35)
    await until(lambda: world.status()["status"] == "Ready")


async def test_a_domain_with_a_taken_name_can_be_deleted_and_leaves_the_other_object_alone(
    world: World,
) -> None:
    theirs = {"metadata": {"name": "ring-channel"}, "spec": {"spec": {"devices": {}}}}
    world.server.create(world.templates(world.team), theirs)
    world.create()
    await until(lambda: world.condition("Accepted")[1] == "NameTaken")

    world.delete()
    await until(lambda: world.domain() is None)
    assert world.get(world.workload_template_path()) is not None


async def test_of_two_domains_that_name_one_template_the_second_waits_for_the_first(
    world: World,
) -> None:
    first = world.create("first", template="shared")
    await world.formed("first")
    world.create("second", template="shared")
    await until(lambda: world.condition("Accepted", "second")[1] == "NameTaken")
    assert first["metadata"]["uid"] in world.condition("Accepted", "second")[2]

    world.delete("first")
    await until(lambda: world.status("second").get("status") == "Ready")


async def test_a_deletion_says_what_it_waits_for(world: World) -> None:
    world.create()
    uid = await world.formed()
    path = world.daemonset_path(uid)
    kept = world.get(path)
    assert kept is not None
    kept["metadata"]["finalizers"].append("example.com/theirs")
    world.server.call("PUT", path, kept)

    world.delete()
    await until(lambda: world.condition("Ready")[1] == "Deleting")
    assert world.condition("Ready")[2] == (
        f"waiting for DaemonSet {world.driver}/computedomain-daemon-{uid} to go, "
        "which the finalizers example.com/theirs keep"
    )
    assert world.status()["status"] == "NotReady"
    assert world.get(world.workload_template_path()) is None

    left = world.get(path)
    assert left is not None
    left["metadata"]["finalizers"] = []
    world.server.call("PUT", path, left)
    await until(lambda: world.domain() is None)


async def test_a_label_that_comes_after_the_domain_has_gone_is_taken_away(world: World) -> None:
    world.create()
    uid = await world.formed()
    world.delete()
    await until(lambda: world.domain() is None)

    node = world.node("late", uid)
    await until(lambda: LABEL not in world.labels(node))


async def test_what_a_domain_left_behind_by_force_is_cleared(world: World) -> None:
    world.create()
    uid = await world.formed()
    stored = world.domain()
    assert stored is not None
    world.delete()
    orphan = {
        "metadata": {"name": "orphan", "finalizers": [OURS], "labels": {LABEL: uid}},
        "spec": {"spec": {"devices": {}}},
    }
    await until(lambda: world.domain() is None)
    world.server.create(world.templates(world.team), orphan)

    await until(lambda: world.get(world.workload_template_path("orphan")) is None)


async def test_when_nothing_changes_nothing_is_asked_or_written(
    world: World, controlled: Controller
) -> None:
    world.create()
    uid = await world.formed()
    node = world.node("node-a", uid)
    pod = world.pod(node, uid)
    world.join(uid, domains.entry(node, 0, podUID=pod["metadata"]["uid"]))
    await until(lambda: world.status()["status"] == "Ready")

    def requests() -> float:
        return sum(
            float(line.rpartition(" ")[2])
            for line in controlled.get("/metrics").splitlines()
            if line.startswith("nvdra_api_requests_seconds_count")
        )

    await asyncio.sleep(3)  # whatever follows the last change; quiet can only be waited for
    before = requests()
    await asyncio.sleep(2)
    assert requests() == before


async def test_fifty_domains_are_made_and_go(world: World) -> None:
    names = [f"ring-{number}" for number in range(50)]
    uids = {name: world.create(name)["metadata"]["uid"] for name in names}
    for name in names:
        await until(lambda name=name: world.status(name).get("status") == "Ready")
        assert len(world.children(uids[name], f"{name}-channel")) == 3

    for name in names:
        world.delete(name)
    for name in names:
        await until(lambda name=name: world.domain(name) is None)
        assert world.children(uids[name], f"{name}-channel") == []


@pytest.mark.parametrize("target", ["Workload", "Daemon"])
async def test_an_object_that_another_tenant_labels_as_the_domains_changes_nothing(
    world: World, target: str
) -> None:
    world.create()
    uid = await world.formed()
    theirs = domains.namespace(world.server, "other")
    labels = {LABEL: uid, "resource.nvidia.com/computeDomainTarget": target}
    body = {
        "metadata": {"name": "x", "labels": labels, "finalizers": ["example.com/theirs"]},
        "spec": {"spec": {"devices": {}}},
    }
    world.server.create(world.templates(theirs), body)

    world.delete()
    await until(lambda: world.domain() is None)
    assert world.children(uid) == []
