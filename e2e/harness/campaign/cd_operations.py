"""What a controller is doing when it is struck, and what must be true when another has done it."""

from typing import Any, Protocol

import domains
from cd_world import LABEL

from campaign.cd_lane import Json, Lane

OURS = "resource.nvidia.com/computeDomain"


class Operation(Protocol):
    """One way through the controller, to be interrupted.

    Attributes:
        name: For the report.
    """

    name: str

    async def arrange(self, lane: Lane) -> None:
        """A controller is there, and nothing else: make what the operation begins with."""

    async def perform(self, lane: Lane) -> None:
        """What a user or a daemon does, and the wait for what comes of it; ended at any moment."""

    def wrong(self, lane: Lane) -> str:
        """What is not as it must be at the end; empty when all is right."""


class Make:
    """A user makes a domain."""

    name = "make"

    async def arrange(self, lane: Lane) -> None:
        """Nothing is there."""

    async def perform(self, lane: Lane) -> None:
        lane.uid = lane.world.create()["metadata"]["uid"]
        await lane.right(lambda: self.wrong(lane))

    def wrong(self, lane: Lane) -> str:
        return _wrong(lane, self.name, "NoNodesYet")


class Join:
    """The first daemon joins and is ready: the domain has formed."""

    name = "join"

    async def arrange(self, lane: Lane) -> None:
        await _form(lane)

    async def perform(self, lane: Lane) -> None:
        _join(lane)
        await lane.right(lambda: self.wrong(lane))

    def wrong(self, lane: Lane) -> str:
        if not lane.note_mark():
            return "the written root is not marked"
        return _wrong(lane, self.name, "AllNodesReady")


class Heal:
    """Two children are changed and one is deleted by somebody, and a member's node is gone."""

    name = "heal"

    async def arrange(self, lane: Lane) -> None:
        await _form_with_members(lane)

    async def perform(self, lane: Lane) -> None:
        world = lane.world
        with lane.halted():
            daemonset = world.get(world.daemonset_path(lane.uid))
            assert daemonset is not None
            daemonset["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"
            world.server.call("PUT", world.daemonset_path(lane.uid), daemonset)
            template = world.get(world.workload_template_path())
            assert template is not None
            template["metadata"]["finalizers"] = []
            world.server.call("PUT", world.workload_template_path(), template)
            world.server.call("DELETE", world.daemon_template_path(lane.uid))
            _leave(lane)
        await lane.right(lambda: self.wrong(lane))

    def wrong(self, lane: Lane) -> str:
        if found := _wrong(lane, self.name, "NoNodesYet"):
            return found
        if places := lane.world.places(lane.uid):
            return f"the clique still has {places}"
        (daemonset,) = lane.children()["DaemonSet"]
        image = daemonset["spec"]["template"]["spec"]["containers"][0]["image"]
        return "the DaemonSet has another image" if image == "theirs" else ""


class Delete:
    """A user deletes a domain that has formed."""

    name = "delete"

    async def arrange(self, lane: Lane) -> None:
        await _form_with_members(lane)

    async def perform(self, lane: Lane) -> None:
        lane.world.delete()
        await lane.right(lambda: self.wrong(lane))

    def wrong(self, lane: Lane) -> str:
        return left(lane)


class Abandon(Delete):
    """A user deletes a domain that forms: its one pod has not joined."""

    name = "abandon"

    async def arrange(self, lane: Lane) -> None:
        await _form(lane)
        lane.note_mark()  # what becomes of the DaemonSet is told from here


async def clear(lane: Lane) -> None:
    """Delete the domain, and see that nothing is left of it; the test's own things go, too."""
    if lane.world.domain() is not None:
        lane.world.delete()
    await lane.right(lambda: left(lane))
    world = lane.world
    for collection in (
        f"/api/v1/namespaces/{world.driver}/pods",
        domains.cliques_path(world.driver),
    ):
        for each in world.server.call("GET", collection)["items"]:
            path = f"{collection}/{each['metadata']['name']}"
            world.server.call("DELETE", path, {"gracePeriodSeconds": 0})
    for each in world.server.call("GET", "/api/v1/nodes")["items"]:
        world.server.call("DELETE", f"/api/v1/nodes/{each['metadata']['name']}")
    await lane.rest()


def left(lane: Lane) -> str:
    """What is left of a domain that was deleted; empty when nothing is."""
    if lane.world.domain() is not None:
        return "the domain is still there"
    found = {what: _names(some) for what, some in lane.children().items() if some}
    if found:
        return f"still there: {found}"
    nodes = lane.labelled()
    return f"nodes with the label: {nodes}" if nodes else ""


def told(status: Json) -> Json:
    """A status without its times."""
    conditions = [
        {key: value for key, value in each.items() if key != "lastTransitionTime"}
        for each in status.get("conditions") or ()
    ]
    return {**status, "conditions": conditions}


def _wrong(lane: Lane, operation: str, reason: str) -> str:
    """What is wrong with a domain that stands."""
    stored = lane.world.domain()
    if stored is None or stored["metadata"].get("finalizers") != [OURS]:
        return f"the domain is not held: {stored}"
    for what, some in lane.children().items():
        if len(some) != 1:
            return f"there are {len(some)} of the {what}"
        metadata = some[0]["metadata"]
        if "deletionTimestamp" in metadata or metadata.get("finalizers") != [OURS]:
            return f"the {what} does not stay: {metadata}"
        if metadata["labels"].get(LABEL) != lane.uid:
            return f"the {what} is another's: {metadata}"
    status = stored.get("status") or {}
    found = {each["type"]: each["reason"] for each in status.get("conditions") or ()}
    if (found.get("Ready"), found.get("ChildrenReady")) != (reason, "ChildrenReady"):
        return f"the status says {found}"
    usual = lane.statuses.get(operation)
    return "" if usual in (None, told(status)) else f"the status is {status}, not {usual}"


async def _form(lane: Lane) -> None:
    """A domain with its children, and one labelled node with a pod that has not joined."""
    world = lane.world
    lane.uid = world.create()["metadata"]["uid"]
    await world.formed()
    world.pod(world.node("a", lane.uid), lane.uid)
    await lane.until(lambda: world.condition("Ready")[2].endswith("has not joined yet"))
    await lane.rest()


async def _form_with_members(lane: Lane) -> None:
    await _form(lane)
    _join(lane)
    await lane.right(lambda: _wrong(lane, "join", "AllNodesReady"))
    await lane.until(lane.note_mark)


def _join(lane: Lane) -> None:
    (pod,) = _pods(lane)
    entry = domains.entry(pod["spec"]["nodeName"], 0, podUID=pod["metadata"]["uid"])
    lane.world.join(lane.uid, {**entry, "ipAddress": pod["status"]["podIP"]})


def _leave(lane: Lane) -> None:
    (pod,) = _pods(lane)
    lane.world.server.call("DELETE", f"/api/v1/nodes/{pod['spec']['nodeName']}")
    lane.world.remove_pod(pod)


def _pods(lane: Lane) -> list[Any]:
    path = f"/api/v1/namespaces/{lane.world.driver}/pods"
    return list(lane.world.server.call("GET", path)["items"])


def _names(some: list[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in some]
