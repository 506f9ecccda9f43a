# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicy of each domain on a real API server, which stores it and enforces none."""

import asyncio
import json
import signal
from typing import Any

from nvdra_cd_controller import network_policies
from nvdra_cd_controller.network_policies import NetworkRules
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.control_plane.domain_installation import LABEL, DriverInstallation
from nvdra_testing.polling import wait_until

RULES: dict[str, Any] = {
    "ingress": [
        {
            "ports": [{"protocol": "TCP", "port": 8080}],
            "from": [
                {"namespaceSelector": {"matchLabels": {}}, "podSelector": {"matchExpressions": []}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": []}},
            ],
        }
    ],
    "egress": [{"ports": [{"protocol": "UDP", "port": 53}, {"port": 443}]}],
}
OFF_S = 60.0
"""The longest wait for a controller to start and to delete what is not wanted any more."""
FLAG = f"--cd-daemon-network-policy={json.dumps(RULES)}"


def policy(world: DriverInstallation, uid: str) -> Any:
    return world.get(world.network_policy_path(uid))


def policies(world: DriverInstallation) -> list[str]:
    found = world.server.request("GET", world.network_policies_path())["items"]
    return sorted(obj["metadata"]["name"] for obj in found)


def wanted_spec(world: DriverInstallation, uid: Any) -> Any:
    rules = NetworkRules.model_validate(RULES)
    return network_policies.network_policy(uid, world.driver_namespace, rules)["spec"]


def writes(controller: ControllerProcess) -> int:
    """How often a policy was written, counted in the log at level 6."""
    lines = controller.log.read_text().splitlines()
    asked = [line for line in lines if 'resource="networkpolicies"' in line]
    return sum('verb="GET"' not in line and 'verb="WATCH"' not in line for line in asked)


async def test_each_domain_has_a_policy_of_its_own_that_is_written_once(
    world: DriverInstallation,
) -> None:
    with world.run_controller(FLAG, "-v=6") as controller:
        world.create_domain()
        uid = await world.wait_children_ready()
        world.create_domain("other")
        other = await world.wait_children_ready("other")
        for owner in (uid, other):
            assert policy(world, owner)["spec"] == wanted_spec(world, owner)
            daemonset = world.get(world.daemonset_path(owner)) or {}
            labels = daemonset["spec"]["template"]["metadata"]["labels"]
            assert policy(world, owner)["spec"]["podSelector"] == {"matchLabels": labels}
            assert policy(world, owner)["metadata"]["labels"] == {LABEL: owner}
            assert "finalizers" not in policy(world, owner)["metadata"]
        world.create_labelled_node("a", uid)  # the domain is reconciled once more
        await wait_until(lambda: world.status().get("expectedNodes") == 1)
        assert writes(controller) == 2

        world.delete_domain("other")
        await wait_until(lambda: world.domain("other") is None)
        assert policies(world) == [f"computedomain-daemon-{uid}"]


async def test_a_policy_comes_before_daemons_can(world: DriverInstallation) -> None:
    with world.run_controller(FLAG):
        world.create_domain()
        uid = await world.wait_children_ready()
        daemonset = world.get(world.daemonset_path(uid)) or {}

        def version(obj: Any) -> int:
            return int(obj["metadata"]["resourceVersion"])

        assert version(policy(world, uid)) < version(daemonset)


async def test_a_policy_that_is_changed_or_deleted_by_hand_is_restored(
    world: DriverInstallation,
) -> None:
    with world.run_controller(FLAG):
        world.create_domain()
        uid = await world.wait_children_ready()
        stored = policy(world, uid)
        stored["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = {}
        stored["spec"]["egress"].append({})
        stored["metadata"]["labels"] = {"theirs": "x"}
        world.server.request("PUT", world.network_policy_path(uid), stored)
        await wait_until(lambda: policy(world, uid)["spec"] == wanted_spec(world, uid))
        assert policy(world, uid)["metadata"]["labels"] == {LABEL: uid, "theirs": "x"}

        world.server.request("DELETE", world.network_policy_path(uid))
        await wait_until(lambda: policy(world, uid) is not None)
        assert policy(world, uid)["metadata"]["uid"] != stored["metadata"]["uid"]
        await wait_until(lambda: world.condition("ChildrenReady")[0] == "True")


async def test_domains_that_run_already_get_policies_and_lose_them_with_the_setting(
    world: DriverInstallation,
) -> None:
    """Those of an earlier release, whose chart had one policy for the daemons of all domains."""
    selector = {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]}
    of_the_chart = {
        "metadata": {"name": "nvdra-nvdra-cd-controller-daemons"},
        "spec": {"podSelector": selector, "ingress": [{"from": [{"podSelector": selector}]}]},
    }
    world.server.create(world.network_policies_path(), of_the_chart)
    chart = "nvdra-nvdra-cd-controller-daemons"
    with world.run_controller():
        world.create_domain()
        uid = await world.wait_children_ready()
        assert policies(world) == [chart]
    with world.run_controller(FLAG):
        await wait_until(lambda: policy(world, uid) is not None)
        assert policies(world) == [f"computedomain-daemon-{uid}", chart], "helm removes its own"
    with world.run_controller("--cd-daemon-network-policy={}"):
        await wait_until(lambda: len(policy(world, uid)["spec"]["egress"]) == 1)
    with world.run_controller():
        await wait_until(lambda: policies(world) == [chart], OFF_S)
        assert world.condition("ChildrenReady")[0] == "True"
        assert len(world.children(uid)) == 3


async def test_a_policy_of_another_domain_is_left_alone_and_said(world: DriverInstallation) -> None:
    with world.run_controller():
        world.create_domain()
        uid = await world.wait_children_ready()
    foreign = {
        "metadata": {"name": f"computedomain-daemon-{uid}", "labels": {LABEL: "another"}},
        "spec": {"podSelector": {"matchLabels": {LABEL: "another"}}},
    }
    made = world.server.create(world.network_policies_path(), foreign)
    with world.run_controller(FLAG):
        await wait_until(lambda: world.condition("Accepted")[1] == "NameTaken")
        message = world.condition("Accepted")[2]
        assert f"NetworkPolicy {world.driver_namespace}/computedomain-daemon-{uid}" in message
        assert policy(world, uid)["metadata"]["uid"] == made["metadata"]["uid"]
        assert policy(world, uid)["spec"] == made["spec"]
        world.server.request("DELETE", world.network_policy_path(uid))
        await wait_until(lambda: world.condition("Accepted")[0] == "True")
        assert policy(world, uid)["spec"] == wanted_spec(world, uid)


async def test_a_policy_that_the_api_server_rejects_is_said_and_there_are_no_daemons(
    world: DriverInstallation,
) -> None:
    wrong = {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}]}
    with world.run_controller(f"--cd-daemon-network-policy={json.dumps(wrong)}"):
        uid = world.create_domain()["metadata"]["uid"]
        await wait_until(lambda: world.condition("Accepted")[1] == "InvalidConfig")
        message = world.condition("Accepted")[2]
        assert "10.0.0.0/99" in message
        assert "daemon.networkPolicy.metricsFrom" in message
        assert world.get(world.daemonset_path(uid)) is None
    with world.run_controller(FLAG):
        await wait_until(lambda: world.condition("Accepted")[0] == "True")
        assert policies(world) == [f"computedomain-daemon-{uid}"]


async def test_policies_of_administrators_with_a_domains_label_stay(
    world: DriverInstallation,
) -> None:
    with world.run_controller(FLAG):
        world.create_domain()
        uid = await world.wait_children_ready()
        theirs = {
            "metadata": {"name": "more", "labels": {LABEL: uid}},
            "spec": {"podSelector": {"matchLabels": {LABEL: uid}}, "ingress": [{}]},
        }
        world.server.create(world.network_policies_path(), theirs)
        world.delete_domain()
        await wait_until(lambda: world.domain() is None)
        assert policies(world) == ["more"]


async def test_a_policy_stays_until_the_last_daemon_has_ended(world: DriverInstallation) -> None:
    """The domain does not wait: the daemon of a lost node stays until the node is removed."""
    with world.run_controller(FLAG):
        world.create_domain()
        uid = await world.wait_children_ready()
        pods = [
            world.create_running_daemon_pod(world.create_labelled_node(node, uid), uid, number)
            for number, node in enumerate("ab")
        ]
        await wait_until(lambda: world.status().get("expectedNodes") == 2)
        world.delete_domain()
        await wait_until(lambda: world.domain() is None)
        world.remove_pod(pods[0])
        await asyncio.sleep(1)
        assert policies(world) == [f"computedomain-daemon-{uid}"]
        world.remove_pod(pods[1])
        await wait_until(lambda: policies(world) == [])


async def test_the_policy_of_a_force_deleted_domain_is_removed_by_the_next_controller(
    world: DriverInstallation,
) -> None:
    with world.run_controller(FLAG) as first:
        world.create_domain()
        uid = await world.wait_children_ready()
        await first.stop(signal.SIGKILL)
    stored = world.domain()
    assert stored is not None
    stored["metadata"]["finalizers"] = []
    world.server.request("PUT", domain_objects.domains_path(world.user_namespace, "ring"), stored)
    world.delete_domain()
    with world.run_controller():  # also where the setting is off by then
        await wait_until(lambda: policies(world) == [])
        await wait_until(lambda: world.get(world.daemonset_path(uid)) is None)


async def test_the_policy_of_daemons_in_an_earlier_namespace_is_there(
    world: DriverInstallation,
) -> None:
    """A policy selects pods of its own namespace only."""
    with world.run_controller():
        world.create_domain()
        uid = await world.wait_children_ready()
    old = world.driver_namespace
    world.driver_namespace = domain_objects.create_namespace(world.server, "nvdra")
    with world.run_controller(FLAG, f"--additional-namespaces={old}"):
        path = world.network_policy_path(uid).replace(world.driver_namespace, old)
        await wait_until(lambda: world.get(path) is not None)
        assert policies(world) == []
        world.delete_domain()
        await wait_until(lambda: world.domain() is None and world.get(path) is None)


async def test_where_the_hosts_run_imex_there_are_no_policies(world: DriverInstallation) -> None:
    flags = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")
    with world.run_controller(FLAG, *flags):
        world.create_domain()
        await world.wait_children_ready()
        assert policies(world) == []
