# SPDX-License-Identifier: Apache-2.0
"""What the controller writes into a clique, beside daemons that write themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_cd_controller import clique_plan
from nvdra_cd_controller.clique_plan import Announced, CliqueInputs
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_testing.control_plane.domain_values import CLIQUE, OTHER_CLIQUE, UID, daemon_pod

NODES = tuple(NodeName(f"node-{letter}") for letter in "abcdef")
A, B, C = NODES[:3]
PLACES = 4
EMPTY = CliqueInputs(UID, CLIQUE, "nvdra", max_nodes=PLACES)


def says(node: NodeName, pod: int = 0, **more: Any) -> Announced:
    uid = PodUID(f"{node}-{pod}")
    return Announced(node, f"daemon-{uid}", uid, Announcement(f"10.4.{pod}.1", **more))


def entry(node: NodeName, index: int, **more: Any) -> JsonObject:
    """An entry of a daemon that writes itself."""
    known = {"nodeName": node, "ipAddress": f"10.9.0.{index}", "cliqueID": CLIQUE, "index": index}
    return {**known, "status": "Ready", **more}


def stored(*entries: JsonObject) -> JsonObject:
    made = clique_plan.desired(replace(EMPTY, announced=(says(A),)))
    assert made is not None
    return {**made, "daemons": list(entries)}


def planned(inputs: CliqueInputs) -> JsonObject:
    found = clique_plan.desired(inputs)
    assert found is not None
    return found


def indexes(clique: JsonObject) -> dict[str, int]:
    return {each["nodeName"]: each["index"] for each in clique["daemons"]}


def test_the_first_daemons_get_a_clique_with_labels_and_owners() -> None:
    made = planned(replace(EMPTY, announced=(says(A, message="starting"), says(B, is_ready=True))))
    metadata = made["metadata"]
    assert metadata["name"] == f"{UID}.{CLIQUE}"
    assert set(metadata["labels"].values()) == {UID, CLIQUE}
    assert metadata["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": f"daemon-{node}-0", "uid": f"{node}-0"}
        for node in (A, B)
    ]
    assert made["daemons"] == [
        {
            "nodeName": A,
            "ipAddress": "10.4.0.1",
            "cliqueID": CLIQUE,
            "index": 0,
            "status": "NotReady",
            "podUID": "node-a-0",
            "message": "starting",
        },
        {
            "nodeName": B,
            "ipAddress": "10.4.0.1",
            "cliqueID": CLIQUE,
            "index": 1,
            "status": "Ready",
            "podUID": "node-b-0",
        },
    ]
    again = replace(
        EMPTY, stored=made, announced=(says(A, message="starting"), says(B, is_ready=True))
    )
    assert clique_plan.desired(again) is None


def test_a_long_text_of_one_daemon_fits_into_the_entry() -> None:
    made = planned(replace(EMPTY, announced=(says(A, message="x" * 5000),)))
    assert made["daemons"][0]["message"] == "x" * 1024
    inputs = replace(EMPTY, stored=made, announced=(says(A, message="x" * 5000),))
    assert clique_plan.desired(inputs) is None


def test_nobody_means_no_clique() -> None:
    assert clique_plan.desired(EMPTY) is None


def test_a_former_index_is_given_again_if_it_is_free() -> None:
    wishes = (says(A, preferred_index=2), says(B, preferred_index=2), says(C, preferred_index=1))
    assert indexes(planned(replace(EMPTY, announced=wishes))) == {A: 2, B: 0, C: 1}


def test_entries_of_daemons_that_write_themselves_are_not_touched() -> None:
    theirs = entry(B, 0, later="version")
    made = planned(replace(EMPTY, stored=stored(theirs), announced=(says(A, preferred_index=0),)))
    assert made["daemons"][0] == theirs
    assert indexes(made) == {B: 0, A: 1}


def test_a_successor_takes_the_entry_over_with_its_index_and_is_not_ready() -> None:
    before = planned(replace(EMPTY, announced=(says(A), says(B, is_ready=True))))
    made = planned(replace(EMPTY, stored=before, announced=(says(A), says(B, pod=1))))
    assert indexes(made) == indexes(before)
    assert (made["daemons"][1]["podUID"], made["daemons"][1]["status"]) == ("node-b-1", "NotReady")


def test_a_daemon_that_shares_an_index_with_one_that_writes_itself_gets_another() -> None:
    mine = {**entry(A, 0), "podUID": "node-a-0"}
    made = planned(replace(EMPTY, stored=stored(mine, entry(B, 0)), announced=(says(A),)))
    assert indexes(made) == {A: 1, B: 0}


def test_a_daemon_without_room_is_left_out() -> None:
    full = [entry(node, index) for index, node in enumerate(NODES[:PLACES])]
    newcomer = replace(EMPTY, stored=stored(*full), announced=(says(NODES[4]),))
    assert clique_plan.desired(newcomer) is None


def test_a_daemon_that_left_has_no_entry_unless_a_successor_has_it() -> None:
    before = planned(replace(EMPTY, announced=(says(A), says(B))))
    gone = says(B, has_left=True)
    assert indexes(planned(replace(EMPTY, stored=before, announced=(says(A), gone)))) == {A: 0}
    succeeded = planned(replace(EMPTY, stored=before, announced=(says(A), says(B, pod=1))))
    late = replace(EMPTY, stored=succeeded, announced=(says(A), gone))
    assert clique_plan.desired(late) is None


def test_a_definition_that_drops_fields_is_not_written_against() -> None:
    made = planned(replace(EMPTY, announced=(says(A, message="starting"),)))
    kept = {
        key: value for key, value in made["daemons"][0].items() if key not in ("podUID", "message")
    }
    dropped = {**made, "daemons": [kept]}
    inputs = replace(EMPTY, stored=dropped, announced=(says(A, message="starting"),))
    assert clique_plan.desired(inputs) is not None
    assert clique_plan.desired(replace(inputs, drops_unknown_fields=True)) is None


def test_of_two_pods_only_the_current_one_speaks_for_a_node() -> None:
    announcement = Announcement("10.4.0.1", is_ready=True)
    old = daemon_pod(A, uid="old", clique=CLIQUE, announcement=announcement)
    new = daemon_pod(A, uid="new", clique=None, created="2026-01-01T00:00:09Z")
    assert clique_plan.announced([old, new]) == {}
    (said,) = clique_plan.announced([old])["nvdra", CLIQUE]
    assert (said.node, said.pod_uid, said.says) == (A, "old", announcement)


def test_a_node_that_is_in_another_clique_now_has_no_entry_in_the_former() -> None:
    here = {("nvdra", CLIQUE): (says(A),), ("nvdra", OTHER_CLIQUE): (says(B),)}
    assert clique_plan.elsewhere(here, CLIQUE) == {B}
    before = planned(replace(EMPTY, announced=(says(A), says(B))))
    moved = clique_plan.elsewhere(here, CLIQUE)
    made = planned(replace(EMPTY, stored=before, announced=(says(A),), stale=moved))
    assert indexes(made) == {A: 0}


READY, STARTING = Announcement("10.4.0.1", is_ready=True), Announcement("10.4.0.1")


@pytest.mark.parametrize(
    ("pods", "labelled", "listed", "is_settled"),
    [
        ({A: STARTING, B: STARTING}, {A, B}, (), True),
        ({A: STARTING, B: None}, {A, B}, (), False),
        ({A: STARTING}, {A, B}, (), False),
        ({A: STARTING, B: STARTING}, {A, B}, (A, B), False),
        ({A: READY, B: STARTING}, {A, B}, (A, B), False),
        ({A: READY, B: READY}, {A, B}, (A, B), True),
        ({A: READY, B: None}, {A, B}, (A, B), True),
        ({A: READY, B: Announcement("1", has_left=True)}, {A}, (A, B), True),
    ],
)
def test_a_clique_is_settled_when_all_have_joined_and_when_all_are_ready(
    pods: dict[NodeName, Announcement | None],
    labelled: set[NodeName],
    listed: Sequence[NodeName],
    *,
    is_settled: bool,
) -> None:
    there = [
        daemon_pod(node, clique=CLIQUE if said else None, announcement=said)
        for node, said in pods.items()
    ]
    clique = stored(*(entry(node, index) for index, node in enumerate(listed)))
    inputs = replace(EMPTY, stored=clique)
    assert clique_plan.is_settled(inputs, there, labelled) is is_settled


@dataclass
class World:
    """A clique that the controller and daemons that write themselves change in any order."""

    stored: JsonObject | None = None
    announced: dict[NodeName, Announced] = field(default_factory=dict)
    pods: int = 0

    def announce(self, node: NodeName, wish: int | None, *, ready: bool, new: bool) -> None:
        known = self.announced.get(node)
        if known is None or new:
            self.pods += 1
            known = says(node, self.pods)
        told = replace(known.says, is_ready=ready, preferred_index=wish)
        self.announced[node] = replace(known, says=told)

    def write_itself(self, node: NodeName) -> None:
        """A reference daemon joins: it takes the lowest free index."""
        entries = list((self.stored or {}).get("daemons") or ())
        used = {each["index"] for each in entries if each["nodeName"] != node}
        free = next((index for index in range(PLACES) if index not in used), None)
        if self.stored is None or free is None or node in self.announced:
            return
        if all(each["nodeName"] != node for each in entries):
            self.stored = {**self.stored, "daemons": [*entries, entry(node, free)]}

    def reconcile(self, stale: frozenset[NodeName] = frozenset()) -> bool:
        said = tuple(self.announced[node] for node in sorted(self.announced))
        change = clique_plan.desired(
            replace(EMPTY, stored=self.stored, announced=said, stale=stale)
        )
        self.stored = change or self.stored
        return change is not None


STEPS = st.one_of(
    st.tuples(
        st.just("announce"),
        st.sampled_from(NODES),
        st.none() | st.integers(-1, PLACES),
        st.booleans(),
        st.booleans(),
    ),
    st.tuples(st.just("itself"), st.sampled_from(NODES)),
    st.tuples(st.just("gone"), st.sampled_from(NODES)),
    st.tuples(st.just("lost")),
    st.tuples(st.just("reconcile")),
)


@given(st.lists(STEPS, max_size=40))
def test_indexes_are_unique_in_range_and_stay_whoever_writes(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    known: dict[str, int] = {}
    for kind, *what in steps:
        if kind == "announce":
            world.announce(what[0], what[1], ready=what[2], new=what[3])
        elif kind == "itself":
            world.write_itself(what[0])
        elif kind == "gone":
            world.announced.pop(what[0], None)
            world.reconcile(frozenset(what))
        elif kind == "lost":
            world.stored = None
        else:
            world.reconcile()
            assert not world.reconcile(), "a second time changes nothing"
        found = indexes(world.stored) if world.stored else {}
        assert (
            len(set(found.values())) == len(found) == len((world.stored or {}).get("daemons", ()))
        )
        assert all(0 <= index < PLACES for index in found.values())
        assert all(known[node] == index for node, index in found.items() if node in known)
        known = found


@given(st.permutations(NODES[:PLACES]), st.data())
def test_the_entries_do_not_depend_on_the_order_of_the_announcements(
    order: list[NodeName], data: st.DataObject
) -> None:
    wishes = [data.draw(st.none() | st.integers(0, PLACES - 1)) for _ in order]
    world, sorted_world = World(), World()
    said = dict(zip(order, wishes, strict=True))
    for node in order:
        world.announce(node, said[node], ready=True, new=False)
    for node in sorted(order):
        sorted_world.announce(node, said[node], ready=True, new=False)
    world.reconcile()
    sorted_world.reconcile()
    assert world.stored is not None
    assert sorted_world.stored is not None
    assert indexes(world.stored) == indexes(sorted_world.stored)


def test_the_clique_is_part_of_the_name() -> None:
    assert clique_plan.clique_of(f"{UID}.{CLIQUE}", UID) == CLIQUE
    assert clique_plan.clique_of("something-else", UID) == CliqueID("")
