# SPDX-License-Identifier: Apache-2.0
"""The operations of the controller that a campaign interrupts, and their required results."""

from typing import Any, Protocol

from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.domain_installation import LABEL
from nvdra_testing.crash_campaigns.controller_sandbox import (
    NETWORK_POLICY,
    ControllerSandbox,
    Json,
)

FINALIZER = "resource.nvidia.com/computeDomain"


class Operation(Protocol):
    """One operation of the controller.

    Attributes:
        name: Its name in the report.
    """

    name: str

    async def arrange(self, sandbox: ControllerSandbox) -> None:
        """Create the initial state; a controller runs, and nothing else exists."""

    async def perform(self, sandbox: ControllerSandbox) -> None:
        """Do what a user or a daemon does, and wait for the result.

        It may be cancelled at any time.
        """

    def find_problem(self, sandbox: ControllerSandbox) -> str:
        """What is wrong with the result; empty if nothing is."""


class CreateDomain:
    """A user creates a domain."""

    name = "make"

    async def arrange(self, sandbox: ControllerSandbox) -> None:
        """Nothing has to exist."""

    async def perform(self, sandbox: ControllerSandbox) -> None:
        sandbox.uid = sandbox.installation.create_domain()["metadata"]["uid"]
        await sandbox.wait_correct(lambda: self.find_problem(sandbox))

    def find_problem(self, sandbox: ControllerSandbox) -> str:
        return _find_problem(sandbox, self.name, "NoNodesYet")


class FirstDaemonJoins:
    """The first daemon joins and is ready, so that the domain has formed."""

    name = "join"

    async def arrange(self, sandbox: ControllerSandbox) -> None:
        await _create_domain_with_pod(sandbox)

    async def perform(self, sandbox: ControllerSandbox) -> None:
        _write_daemon_entry(sandbox)
        await sandbox.wait_correct(lambda: self.find_problem(sandbox))

    def find_problem(self, sandbox: ControllerSandbox) -> str:
        if not sandbox.look_for_mark():
            return "the written root is not marked"
        return _find_problem(sandbox, self.name, "AllNodesReady")


class RepairChildren:
    """Three children are changed, one is deleted, and a member's node is removed."""

    name = "heal"

    async def arrange(self, sandbox: ControllerSandbox) -> None:
        await _create_formed_domain(sandbox)

    async def perform(self, sandbox: ControllerSandbox) -> None:
        world = sandbox.installation
        with sandbox.pause_controller():
            daemonset = world.get(world.daemonset_path(sandbox.uid))
            assert daemonset is not None
            daemonset["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"
            world.server.request("PUT", world.daemonset_path(sandbox.uid), daemonset)
            template = world.get(world.workload_template_path())
            assert template is not None
            template["metadata"]["finalizers"] = []
            world.server.request("PUT", world.workload_template_path(), template)
            policy = world.get(world.network_policy_path(sandbox.uid))
            assert policy is not None
            policy["spec"]["ingress"].append({})
            world.server.request("PUT", world.network_policy_path(sandbox.uid), policy)
            world.server.request("DELETE", world.daemon_template_path(sandbox.uid))
            _remove_node(sandbox)
        await sandbox.wait_correct(lambda: self.find_problem(sandbox))

    def find_problem(self, sandbox: ControllerSandbox) -> str:
        if found := _find_problem(sandbox, self.name, "NoNodesYet"):
            return found
        if places := sandbox.installation.clique_indexes(sandbox.uid):
            return f"the clique still has {places}"
        (daemonset,) = sandbox.children()["DaemonSet"]
        image = daemonset["spec"]["template"]["spec"]["containers"][0]["image"]
        if image == "theirs":
            return "the DaemonSet has another image"
        (policy,) = sandbox.children()[NETWORK_POLICY]
        return "the network policy lets everything in" if {} in policy["spec"]["ingress"] else ""


class DeleteFormedDomain:
    """A user deletes a formed domain, whose daemon has ended."""

    name = "delete"

    async def arrange(self, sandbox: ControllerSandbox) -> None:
        await _create_formed_domain(sandbox)

    async def perform(self, sandbox: ControllerSandbox) -> None:
        with sandbox.pause_controller():
            _remove_pods(sandbox)
            sandbox.installation.delete_domain()
        await sandbox.wait_correct(lambda: self.find_problem(sandbox))

    def find_problem(self, sandbox: ControllerSandbox) -> str:
        return find_leftover(sandbox)


class DeleteFormingDomain(DeleteFormedDomain):
    """A user deletes a domain whose only pod has not joined yet."""

    name = "abandon"

    async def arrange(self, sandbox: ControllerSandbox) -> None:
        await _create_domain_with_pod(sandbox)
        sandbox.look_for_mark()  # later versions of the DaemonSet are read from here on

    async def perform(self, sandbox: ControllerSandbox) -> None:
        sandbox.installation.delete_domain()
        await sandbox.wait_correct(lambda: self.find_problem(sandbox))


async def delete_domain(sandbox: ControllerSandbox) -> None:
    """Delete the domain, wait until nothing is left of it, and remove the test's own objects."""
    if sandbox.installation.domain() is not None:
        sandbox.installation.delete_domain()
    await sandbox.wait_correct(lambda: find_leftover(sandbox))
    world = sandbox.installation
    _remove_pods(sandbox)
    await sandbox.wait_correct(lambda: find_leftover(sandbox))
    collection = domain_objects.cliques_path(world.driver_namespace)
    for each in world.server.request("GET", collection)["items"]:
        world.server.request("DELETE", f"{collection}/{each['metadata']['name']}")
    for each in world.server.request("GET", "/api/v1/nodes")["items"]:
        world.server.request("DELETE", f"/api/v1/nodes/{each['metadata']['name']}")
    await sandbox.wait_idle()


def find_leftover(sandbox: ControllerSandbox) -> str:
    """What is left of a deleted domain; empty if nothing is.

    A network policy stays as long as a daemon.
    """
    if sandbox.installation.domain() is not None:
        return "the domain is still there"
    found = {what: _names(some) for what, some in sandbox.children().items() if some}
    if _pods(sandbox):
        found.pop(NETWORK_POLICY, None)
    if found:
        return f"still there: {found}"
    nodes = sandbox.labelled_nodes()
    return f"nodes with the label: {nodes}" if nodes else ""


def comparable_status(status: Json) -> Json:
    """A status without times."""
    conditions = [
        {key: value for key, value in each.items() if key != "lastTransitionTime"}
        for each in status.get("conditions") or ()
    ]
    return {**status, "conditions": conditions}


def _find_problem(sandbox: ControllerSandbox, operation: str, reason: str) -> str:
    """What is wrong with an existing domain; empty if nothing is."""
    stored = sandbox.installation.domain()
    if stored is None or stored["metadata"].get("finalizers") != [FINALIZER]:
        return f"the domain is not held: {stored}"
    for what, some in sandbox.children().items():
        if len(some) != 1:
            return f"there are {len(some)} of the {what}"
        metadata = some[0]["metadata"]
        finalizers = [] if what == NETWORK_POLICY else [FINALIZER]
        if "deletionTimestamp" in metadata or metadata.get("finalizers", []) != finalizers:
            return f"the {what} does not stay: {metadata}"
        if metadata["labels"].get(LABEL) != sandbox.uid:
            return f"the {what} is another's: {metadata}"
    status = stored.get("status") or {}
    found = {each["type"]: each["reason"] for each in status.get("conditions") or ()}
    if (found.get("Ready"), found.get("ChildrenReady")) != (reason, "ChildrenReady"):
        return f"the status says {found}"
    usual = sandbox.statuses.get(operation)
    return (
        "" if usual in (None, comparable_status(status)) else f"the status is {status}, not {usual}"
    )


async def _create_domain_with_pod(sandbox: ControllerSandbox) -> None:
    """Create a domain with its children, a labelled node, and a pod that has not joined."""
    world = sandbox.installation
    sandbox.uid = world.create_domain()["metadata"]["uid"]
    await world.wait_children_ready()
    world.create_running_daemon_pod(world.create_labelled_node("a", sandbox.uid), sandbox.uid)
    await sandbox.wait_until(lambda: world.condition("Ready")[2].endswith("has not joined yet"))
    await sandbox.wait_idle()


async def _create_formed_domain(sandbox: ControllerSandbox) -> None:
    await _create_domain_with_pod(sandbox)
    _write_daemon_entry(sandbox)
    await sandbox.wait_correct(lambda: _find_problem(sandbox, "join", "AllNodesReady"))
    await sandbox.wait_until(sandbox.look_for_mark)


def _write_daemon_entry(sandbox: ControllerSandbox) -> None:
    (pod,) = _pods(sandbox)
    entry = domain_objects.clique_entry(pod["spec"]["nodeName"], 0, podUID=pod["metadata"]["uid"])
    sandbox.installation.write_clique_entries(
        sandbox.uid, {**entry, "ipAddress": pod["status"]["podIP"]}
    )


def _remove_node(sandbox: ControllerSandbox) -> None:
    (pod,) = _pods(sandbox)
    sandbox.installation.server.request("DELETE", f"/api/v1/nodes/{pod['spec']['nodeName']}")
    sandbox.installation.remove_pod(pod)


def _remove_pods(sandbox: ControllerSandbox) -> None:
    for pod in _pods(sandbox):
        sandbox.installation.remove_pod(pod)


def _pods(sandbox: ControllerSandbox) -> list[Any]:
    path = f"/api/v1/namespaces/{sandbox.installation.driver_namespace}/pods"
    return list(sandbox.installation.server.request("GET", path)["items"])


def _names(some: list[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in some]
