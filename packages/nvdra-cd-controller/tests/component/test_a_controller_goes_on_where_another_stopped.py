"""What was begun, changed or lost while no controller was there."""

import json
import signal
from pathlib import Path
from typing import Any

import apiserver
import domains
from cd_world import LABEL, World
from controller import Controller
from nvdra_cd_controller.roots import ANNOTATION
from waiting import until

OURS = "resource.nvidia.com/computeDomain"


async def test_a_domain_whose_children_are_missing_goes_all_the_same(world: World) -> None:
    with world.controlled() as first:
        world.create()
        uid = await world.formed()
        await first.stop(signal.SIGKILL)
    for path in (world.daemonset_path(uid), world.daemon_template_path(uid)):
        child = world.get(path)
        assert child is not None
        child["metadata"]["finalizers"] = []
        world.server.call("PUT", path, child)
        world.server.call("DELETE", path)
    world.delete()

    with world.controlled():
        await until(lambda: world.domain() is None)
    assert world.children(uid) == []


async def test_orphans_of_a_domain_that_went_by_force_are_cleared_at_the_start(
    world: World,
) -> None:
    with world.controlled() as first:
        world.create()
        uid = await world.formed()
        await first.stop()
    node = world.node("a", uid)
    stored = world.domain()
    assert stored is not None
    stored["metadata"]["finalizers"] = []
    world.server.call("PUT", domains.domains_path(world.team, "ring"), stored)
    world.delete()

    with world.controlled():
        await until(lambda: LABEL not in world.labels(node))
        await until(lambda: world.children(uid) == [])
        await until(lambda: world.get(world.daemonset_path(uid)) is None)


async def test_a_restart_changes_nothing_of_what_stands(world: World) -> None:
    def versions() -> list[str]:
        objects = [world.domain(), *world.children(uid)]
        return [each["metadata"]["resourceVersion"] for each in objects if each]

    with world.controlled() as first:
        world.create()
        uid = await world.formed()
        await first.stop()
    before = versions()
    with world.controlled() as second:
        await until(second.is_ready)
        await until(lambda: second.metric('nvdra_compute_domain_info{status="Ready"}') == 1)
        await second.stop()
    assert versions() == before


async def test_domains_of_the_namespace_where_the_driver_was_are_looked_after(
    world: World, server: Any
) -> None:
    with world.controlled() as first:
        world.create()
        uid = await world.formed()
        await first.stop()
    old, world.driver = world.driver, domains.namespace(server, "nvdra")
    with world.controlled(f"--additional-namespaces={old}"):
        world.create("new")
        await world.formed("new")
        assert world.get(world.daemonset_path(uid)) is None
        world.delete()
        await until(lambda: world.domain() is None)
        world.driver = old
        assert world.get(world.daemonset_path(uid)) is None


async def test_where_the_hosts_run_imex_a_domain_has_a_template_and_is_ready(
    world: World,
) -> None:
    flags = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")
    with world.controlled(*flags):
        world.create(numNodes=4)
        uid = await world.formed()
        assert world.status()["status"] == "Ready"
        assert world.condition("Ready")[1] == "HostManaged"
        assert [each["metadata"]["name"] for each in world.children(uid)] == ["ring-channel"]
        world.delete()
        await until(lambda: world.domain() is None)
        assert world.children(uid) == []


async def test_where_the_hosts_run_imex_the_next_controller_writes_no_second_root(
    world: World,
) -> None:
    flags = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")
    path = world.workload_template_path()

    def template() -> Any:
        return world.get(path)

    with world.controlled(*flags) as first:
        world.create()
        uid = await world.formed()
        kept = template()
        kept["metadata"]["finalizers"].append("example.com/kept")
        world.server.call("PUT", path, kept)
        world.delete()
        await until(lambda: ANNOTATION in template()["metadata"].get("annotations", {}))
        await until(lambda: "compute domain" in names_of(first, uid))
        await first.stop(signal.SIGKILL)
    with world.controlled(*flags) as second:
        await until(lambda: OURS not in template()["metadata"]["finalizers"])
        kept = template()
        kept["metadata"]["finalizers"] = []
        world.server.call("PUT", path, kept)
        await until(lambda: world.domain() is None)
        assert names_of(second, uid) == {"teardown"}


async def test_a_domain_is_one_trace_with_its_root_written_once(world: World) -> None:
    with world.controlled() as controller:
        world.create()
        uid = await world.formed()
        world.delete()
        await until(lambda: world.domain() is None)
        trace = json.loads(controller.get(f"/debug/traces/{uid}?format=json", debug=True))

    (root,) = trace["spans"]
    assert root["name"] == "compute domain"
    assert root["attributes"]["nvdra.domain.uid"] == uid
    assert [child["name"] for child in root["children"]] == ["reconcile", "teardown"]
    assert [step["name"] for step in root["children"][0]["children"]] == [
        "ensure daemonset",
        "ensure claim templates",
        "write status",
    ]


async def test_a_root_that_was_written_on_the_way_out_is_not_written_by_the_next_one(
    world: World,
) -> None:
    def daemonset() -> Any:
        return world.get(world.daemonset_path(uid))

    with world.controlled() as first:
        world.create()
        uid = await world.formed()
        kept = daemonset()
        kept["metadata"]["finalizers"].append("example.com/kept")
        world.server.call("PUT", world.daemonset_path(uid), kept)
        world.delete()
        await until(lambda: ANNOTATION in daemonset()["metadata"].get("annotations", {}))
        await first.stop(signal.SIGKILL)
    node = world.node("a", uid)  # once its label is off, the next controller is at work
    with world.controlled() as second:
        await until(lambda: LABEL not in world.labels(node))
        await until(lambda: OURS not in daemonset()["metadata"]["finalizers"])
        kept = daemonset()
        kept["metadata"]["finalizers"] = []
        world.server.call("PUT", world.daemonset_path(uid), kept)
        await until(lambda: world.domain() is None)
        assert names_of(second, uid) == {"teardown"}


def names_of(controller: Controller, uid: str) -> set[str]:
    """What a controller knows of a domain's trace at its top: the root, or what lies below it."""
    trace = json.loads(controller.get(f"/debug/traces/{uid}?format=json", debug=True))
    return {span["name"] for span in trace["spans"]}


async def test_a_controller_that_cannot_see_everything_yet_says_so_and_can_be_stopped(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    with apiserver.started(tmp_path / "bare") as bare:
        kubeconfig = bare.kubeconfig
        with world.controlled(kubeconfig=kubeconfig) as controller:
            await until(lambda: "computedomains" in controller.log.read_text())
            assert not controller.is_ready()
            assert await controller.stop() == 0
