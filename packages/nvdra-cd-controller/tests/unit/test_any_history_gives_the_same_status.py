"""Daemons join, speak and leave in any order; whoever watched it, however badly, tells the same.

One reader sees every event once. Another sees some twice, late ones after its own writes, and lists
anew in between. What both make of it in the end is the same members, places and status.
"""

import json
import random
from datetime import UTC, datetime
from typing import Any

import cd_objects
from cd_objects import CLIQUE
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol import daemon_pods
from nvdra_api.protocol.watching import Collection
from nvdra_api.types.domains import ComputeDomainClique
from nvdra_api.types.ids import NodeName
from nvdra_cd_controller import members, status
from nvdra_cd_controller.status import Facts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ["a", "b", "c", "d"]
MOVES = st.lists(
    st.tuples(st.sampled_from(["start", "join", "ready", "leave", "kill"]), st.sampled_from(NODES)),
    max_size=40,
)


class Server:
    """One clique and the daemons' pods, as the API server has them; every change is an event."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"cliques": {}, "pods": {}}
        self.events: list[tuple[str, bytes]] = []

    def put(self, kind: str, obj: dict[str, Any]) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        name = obj["metadata"]["name"]
        verb = "MODIFIED" if name in self.objects[kind] else "ADDED"
        self.objects[kind][name] = obj
        self._tell(kind, verb, obj)

    def drop(self, kind: str, name: str) -> None:
        obj = self.objects[kind].pop(name, None)
        if obj is not None:
            self.version += 1
            metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
            self._tell(kind, "DELETED", {**obj, "metadata": metadata})

    def listing(self, kind: str) -> dict[str, Any]:
        items = json.loads(json.dumps(list(self.objects[kind].values())))
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _tell(self, kind: str, verb: str, obj: dict[str, Any]) -> None:
        self.events.append((kind, json.dumps({"type": verb, "object": obj}).encode()))


def play(server: Server, number: int, move: str, node: str) -> None:
    """One move of one node; a daemon joins as the protocol says."""
    stored = server.objects["cliques"].get("clique")
    entries = {each["nodeName"]: each for each in (stored or {}).get("daemons", ())}
    running = server.objects["pods"].get(f"pod-{node}")
    if move == "start":
        server.drop("pods", f"pod-{node}")
        metadata = {"name": f"pod-{node}", "uid": f"{node}-{number}"}
        spec, said = {"nodeName": node}, {"phase": "Running", "podIP": f"10.0.0.{number}"}
        server.put("pods", {"metadata": metadata, "spec": spec, "status": said})
        return
    if move in ("leave", "kill"):
        server.drop("pods", f"pod-{node}")
        if move == "kill" or entries.pop(node, None) is None:
            return
    elif running is None:
        return
    else:
        taken = {each["index"] for name, each in entries.items() if name != node}
        free = next(index for index in range(18) if index not in taken)
        entries[node] = {
            "nodeName": node,
            "ipAddress": running["status"]["podIP"],
            "cliqueID": CLIQUE,
            "index": entries[node]["index"] if node in entries else free,
            "status": "Ready" if move == "ready" else "NotReady",
            "podUID": running["metadata"]["uid"],
        }
    metadata = {"name": "clique", "uid": "clique"}
    server.put("cliques", {"metadata": metadata, "daemons": list(entries.values())})


def told(readers: dict[str, Collection], labelled: set[NodeName]) -> Any:
    """Members, stale entries and the whole status, from what a reader knows."""
    cliques = [
        ComputeDomainClique.model_validate(each) for each in readers["cliques"].objects().values()
    ]
    seen = [daemon_pods.read(each) for each in readers["pods"].objects().values()]
    found = members.of(cliques, seen, labelled)
    stale = [members.stale(each, [], seen, labelled) for each in cliques]
    return found, stale, status.wanted(cd_objects.domain(2), Facts(members=found), NOW)


@given(MOVES, st.sets(st.sampled_from(NODES)), st.randoms(use_true_random=False))
def test_any_history_gives_the_same_members_places_and_status(
    moves: list[tuple[str, str]], labels: set[str], chance: random.Random
) -> None:
    server, labelled = Server(), set(map(NodeName, labels))
    careful = {kind: Collection() for kind in server.objects}
    clumsy = {kind: Collection() for kind in server.objects}
    for kind in server.objects:
        careful[kind].listed(server.listing(kind))
        clumsy[kind].listed(server.listing(kind))
    behind = 0
    for number, (move, node) in enumerate(moves, 1):
        before = len(server.events)
        play(server, number, move, node)
        for kind, event in server.events[before:]:
            careful[kind].fed(event)
        if chance.random() < 0.3:
            continue  # its watch lags behind
        for kind, event in server.events[behind:]:
            clumsy[kind].fed(event)
            if chance.random() < 0.3:
                clumsy[kind].fed(event)
        behind = len(server.events)
        if chance.random() < 0.2:
            kind = chance.choice(sorted(server.objects))
            clumsy[kind].listed(server.listing(kind))
    for kind, event in server.events[behind:]:
        clumsy[kind].fed(event)

    assert told(clumsy, labelled) == told(careful, labelled)
    found, _, _ = told(careful, labelled)
    places = [member.index for member in found if member.clique == CLIQUE]
    assert len(places) == len(set(places))
