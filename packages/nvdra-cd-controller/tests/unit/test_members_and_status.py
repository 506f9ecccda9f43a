# SPDX-License-Identifier: Apache-2.0
"""Members and status do not depend on how their events arrive.

Daemons join, report and leave in any order. One reader sees every event once. Another one sees some
events twice, sees some after its own writes, and lists again in between. In the end both compute
the same members, indexes and status.
"""

import json
import random
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import NodeName
from nvdra_api.v1beta1 import ComputeDomainClique
from nvdra_cd_controller import members, status
from nvdra_cd_controller.status import StatusInputs
from nvdra_runtime.computedomain import daemon_pods
from nvdra_runtime.kube.informer_cache import InformerCache
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import CLIQUE

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ["a", "b", "c", "d"]
MOVES = st.lists(
    st.tuples(st.sampled_from(["start", "join", "ready", "leave", "kill"]), st.sampled_from(NODES)),
    max_size=40,
)


class Server:
    """One clique and the daemons' pods in the API server. Every change is an event."""

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
    """One action of one node. A daemon joins as the protocol says."""
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


def computed(readers: dict[str, InformerCache], labelled: set[NodeName]) -> Any:
    """Members, stale entries and the whole status that a reader computes."""
    cliques = [
        ComputeDomainClique.model_validate(each) for each in readers["cliques"].objects().values()
    ]
    seen = [daemon_pods.read(each) for each in readers["pods"].objects().values()]
    current = members.current(cliques, seen, labelled)
    stale = [members.stale_entries(each, [], seen, labelled) for each in cliques]
    return (
        current,
        stale,
        status.desired(domain_values.domain(2), StatusInputs(members=current), NOW),
    )


@given(MOVES, st.sets(st.sampled_from(NODES)), st.randoms(use_true_random=False))
def test_any_history_gives_the_same_members_indexes_and_status(
    moves: list[tuple[str, str]], labels: set[str], chance: random.Random
) -> None:
    server, labelled = Server(), set(map(NodeName, labels))
    complete = {kind: InformerCache() for kind in server.objects}
    irregular = {kind: InformerCache() for kind in server.objects}
    for kind in server.objects:
        complete[kind].replace(server.listing(kind))
        irregular[kind].replace(server.listing(kind))
    behind = 0
    for number, (move, node) in enumerate(moves, 1):
        before = len(server.events)
        play(server, number, move, node)
        for kind, event in server.events[before:]:
            complete[kind].apply_watch_line(event)
        if chance.random() < 0.3:
            continue  # its watch is late
        for kind, event in server.events[behind:]:
            irregular[kind].apply_watch_line(event)
            if chance.random() < 0.3:
                irregular[kind].apply_watch_line(event)
        behind = len(server.events)
        if chance.random() < 0.2:
            kind = chance.choice(sorted(server.objects))
            irregular[kind].replace(server.listing(kind))
    for kind, event in server.events[behind:]:
        irregular[kind].apply_watch_line(event)

    assert computed(irregular, labelled) == computed(complete, labelled)
    found, _, _ = computed(complete, labelled)
    places = [member.index for member in found if member.clique == CLIQUE]
    assert len(places) == len(set(places))
