# SPDX-License-Identifier: Apache-2.0
"""A controller takes over what was started, changed or lost while no controller was running."""

import asyncio
import json
import re
import signal
import urllib.error
from pathlib import Path
from typing import Any

from nvdra_cd_controller.domain_root_span import ANNOTATION
from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import LABEL, DriverInstallation
from nvdra_testing.polling import wait_until

OURS = "resource.nvidia.com/computeDomain"


async def test_a_domain_with_missing_children_can_be_deleted(
    world: DriverInstallation,
) -> None:
    with world.run_controller() as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        await first.stop(signal.SIGKILL)
    for path in (world.daemonset_path(uid), world.daemon_template_path(uid)):
        child = world.get(path)
        assert child is not None
        child["metadata"]["finalizers"] = []
        world.server.request("PUT", path, child)
        world.server.request("DELETE", path)
    world.delete_domain()

    with world.run_controller():
        await wait_until(lambda: world.domain() is None)
    assert world.children(uid) == []


async def test_orphans_of_a_force_deleted_domain_are_removed_at_the_start(
    world: DriverInstallation,
) -> None:
    with world.run_controller() as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        await first.stop()
    node = world.create_labelled_node("a", uid)
    stored = world.domain()
    assert stored is not None
    stored["metadata"]["finalizers"] = []
    world.server.request("PUT", domain_objects.domains_path(world.user_namespace, "ring"), stored)
    world.delete_domain()

    with world.run_controller():
        await wait_until(lambda: LABEL not in world.node_labels(node))
        await wait_until(lambda: world.children(uid) == [])
        await wait_until(lambda: world.get(world.daemonset_path(uid)) is None)


async def test_a_restart_writes_nothing(world: DriverInstallation) -> None:
    def writes(one: ControllerProcess) -> list[str]:
        """Also those that change nothing, which no resourceVersion shows."""
        requests = (
            line.rpartition(" ")[0]
            for line in one.get("/metrics").splitlines()
            if line.startswith("nvdra_api_requests_seconds_count")
        )
        return [each for each in requests if not re.search('verb="(GET|WATCH)"', each)]

    with world.run_controller() as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        assert writes(first)
        await first.stop()
    before = [each["metadata"]["resourceVersion"] for each in world.children(uid)]
    with world.run_controller() as second:
        await wait_until(second.is_ready)
        await wait_until(lambda: second.metric('nvdra_compute_domain_info{status="Ready"}') == 1)
        await asyncio.sleep(1)
        assert writes(second) == []
        await second.stop()
    assert [each["metadata"]["resourceVersion"] for each in world.children(uid)] == before


async def test_domains_of_an_earlier_namespace_are_managed(
    world: DriverInstallation, server: Any
) -> None:
    with world.run_controller() as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        await first.stop()
    old, world.driver_namespace = (
        world.driver_namespace,
        domain_objects.create_namespace(server, "nvdra"),
    )
    with world.run_controller(f"--additional-namespaces={old}"):
        world.create_domain("new")
        await world.wait_children_ready("new")
        assert world.get(world.daemonset_path(uid)) is None
        world.delete_domain()
        await wait_until(lambda: world.domain() is None)
        world.driver_namespace = old
        assert world.get(world.daemonset_path(uid)) is None


async def test_where_the_hosts_run_imex_a_domain_has_only_a_template_and_is_ready(
    world: DriverInstallation,
) -> None:
    flags = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")
    with world.run_controller(*flags):
        world.create_domain(numNodes=4)
        uid = await world.wait_children_ready()
        assert world.status()["status"] == "Ready"
        assert world.condition("Ready")[1] == "HostManaged"
        assert [each["metadata"]["name"] for each in world.children(uid)] == ["ring-channel"]
        world.delete_domain()
        await wait_until(lambda: world.domain() is None)
        assert world.children(uid) == []


async def test_where_the_hosts_run_imex_the_root_span_is_written_once(
    world: DriverInstallation,
) -> None:
    flags = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")
    path = world.workload_template_path()

    def template() -> Any:
        return world.get(path)

    with world.run_controller(*flags) as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        kept = template()
        kept["metadata"]["finalizers"].append("example.com/kept")
        world.server.request("PUT", path, kept)
        world.delete_domain()
        await wait_until(lambda: ANNOTATION in template()["metadata"].get("annotations", {}))
        await wait_until(lambda: "compute domain" in names_of(first, uid))
        await first.stop(signal.SIGKILL)
    with world.run_controller(*flags) as second:
        await wait_until(lambda: OURS not in template()["metadata"]["finalizers"])
        kept = template()
        kept["metadata"]["finalizers"] = []
        world.server.request("PUT", path, kept)
        await wait_until(lambda: world.domain() is None)
        # The domain is gone a moment before the span of its teardown ends.
        await wait_until(lambda: names_of(second, uid))
        assert names_of(second, uid) == {"teardown"}


async def test_a_domain_is_one_trace_with_its_root_written_once(world: DriverInstallation) -> None:
    with world.run_controller() as controller:
        world.create_domain()
        uid = await world.wait_children_ready()
        world.delete_domain()
        await wait_until(lambda: world.domain() is None)

        def root_span() -> Any:
            trace = json.loads(controller.get(f"/debug/traces/{uid}?format=json", debug=True))
            (root,) = trace["spans"]
            return root

        # The domain is gone a moment before the span of its teardown ends.
        await wait_until(lambda: len(root_span()["children"]) == 2)
        root = root_span()

    assert root["name"] == "compute domain"
    assert root["attributes"]["nvdra.domain.uid"] == uid
    assert [child["name"] for child in root["children"]] == ["reconcile", "teardown"]
    assert [step["name"] for step in root["children"][0]["children"]] == [
        "ensure daemonset",
        "ensure claim templates",
        "write status",
    ]


async def test_a_root_span_written_during_deletion_is_not_written_again(
    world: DriverInstallation,
) -> None:
    def daemonset() -> Any:
        return world.get(world.daemonset_path(uid))

    with world.run_controller() as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        kept = daemonset()
        kept["metadata"]["finalizers"].append("example.com/kept")
        world.server.request("PUT", world.daemonset_path(uid), kept)
        world.delete_domain()
        await wait_until(lambda: ANNOTATION in daemonset()["metadata"].get("annotations", {}))
        await first.stop(signal.SIGKILL)
    node = world.create_labelled_node(
        "a", uid
    )  # once its label is removed, the next controller is working
    with world.run_controller() as second:
        await wait_until(lambda: LABEL not in world.node_labels(node))
        await wait_until(lambda: OURS not in daemonset()["metadata"]["finalizers"])
        kept = daemonset()
        kept["metadata"]["finalizers"] = []
        world.server.request("PUT", world.daemonset_path(uid), kept)
        await wait_until(lambda: world.domain() is None)
        # The domain is gone a moment before the span of its teardown ends.
        await wait_until(lambda: names_of(second, uid))
        assert names_of(second, uid) == {"teardown"}


def names_of(controller: ControllerProcess, uid: str) -> set[str]:
    """The top of a domain's trace as a controller shows it: the root span, or its children.

    Empty while the controller has no span of the domain.
    """
    try:
        trace = json.loads(controller.get(f"/debug/traces/{uid}?format=json", debug=True))
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 404:
                raise
        return set()
    return {span["name"] for span in trace["spans"]}


async def test_a_controller_that_has_not_synced_is_not_ready_and_can_be_stopped(
    world: DriverInstallation, tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    with apiserver.run_apiserver(tmp_path / "bare") as bare:
        kubeconfig = bare.kubeconfig
        with world.run_controller(kubeconfig=kubeconfig) as controller:
            await wait_until(lambda: "computedomains" in controller.log.read_text())
            assert not controller.is_ready()
            assert await controller.stop() == 0
