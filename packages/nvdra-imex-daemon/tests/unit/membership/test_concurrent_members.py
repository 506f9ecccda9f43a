# SPDX-License-Identifier: Apache-2.0
"""A clique stays consistent in any order of joins, leaves, deaths, reports and stale reads.

The model of the API server has one rule: a write based on an outdated version is rejected.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.errors import RetryableError
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_imex_daemon.configuration import peers
from nvdra_imex_daemon.membership import entries, member_store
from nvdra_imex_daemon.membership.entries import MemberIdentity, MemberStatus
from nvdra_imex_daemon.membership.member_store import CliqueMemberStore, Pod

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
PLACES = 5
NODES = tuple("abcdef")


@dataclass
class Model:
    """One stored clique, all its versions, and the running daemons."""

    versions: list[JsonObject | None] = field(default_factory=lambda: [None])
    alive: dict[str, MemberIdentity] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """The index that each node has stored for its next daemon."""
    pods: int = 0

    @property
    def entries(self) -> list[dict[str, Any]]:
        stored = self.versions[-1]
        return list(stored["daemons"]) if stored is not None else []

    def shape(self, who: MemberIdentity) -> CliqueMemberStore:
        return CliqueMemberStore(DOMAIN, who, Pod("nvdra", f"daemon-{who.pod_uid}", who.pod_uid))

    def born(self, node: str) -> None:
        """Start a pod on the node; if there is one already, it has died."""
        self.pods += 1
        address = f"10.4.0.{self.pods % 250 + 1}"
        uid = PodUID(f"pod-{self.pods}")
        self.alive[node] = MemberIdentity(CLIQUE, NodeName(node), address, uid, PLACES)

    def reported(self, node: str, *, ready: bool, stale: int) -> None:
        """The daemon writes its entry, at first based on an old version of the clique."""
        who = self.alive.get(node)
        if who is None:
            return
        report = MemberStatus(is_ready=ready, message="" if ready else "starting")
        at = max(0, len(self.versions) - 1 - stale)
        while True:
            try:
                change = member_store.desired(
                    self.shape(who),
                    self.versions[at],
                    who,
                    report,
                    preferred_index=self.places.get(node),
                    drops_unknown_fields=False,
                )
            except RetryableError:
                change = None
            if at == len(self.versions) - 1:
                break
            if change is None:
                return  # nothing to write in the version that it knows; it sees the newer one later
            at = len(self.versions) - 1  # a conflict: somebody else has written
        if change is not None:
            self.versions.append(change)
            self.places.update(self.indexes())

    def indexes(self) -> dict[str, int]:
        return {each["nodeName"]: each["index"] for each in self.entries}

    def left(self, node: str) -> None:
        who, stored = self.alive.pop(node, None), self.versions[-1]
        if who is not None and stored is not None:
            after = entries.without_own_entry(stored["daemons"], who)
            self.versions.append({**stored, "daemons": after})


steps = st.one_of(
    st.tuples(st.just("born"), st.sampled_from(NODES)),
    st.tuples(st.just("dies"), st.sampled_from(NODES)),
    st.tuples(st.just("leaves"), st.sampled_from(NODES)),
    st.tuples(st.just("lost"), st.just("")),
    st.tuples(
        st.just("reports"),
        st.sampled_from(NODES),
        st.booleans(),
        st.integers(min_value=0, max_value=4),
    ),
)


def play(model: Model, step: tuple[Any, ...]) -> None:
    kind, node, *rest = step
    if kind == "born":
        model.born(node)
    elif kind == "dies":
        model.alive.pop(node, None)
    elif kind == "leaves":
        model.left(node)
    elif kind == "lost":
        model.versions.append(None)
    else:
        model.reported(node, ready=rest[0], stale=rest[1])


@given(st.lists(steps, max_size=40))
def test_indexes_are_unique_in_range_and_never_change_while_the_entry_stays(
    sequence: list[tuple[Any, ...]],
) -> None:
    model = Model()
    known: dict[str, int] = {}
    for step in sequence:
        play(model, step)
        found = model.indexes()
        assert len(set(found.values())) == len(found) == len(model.entries)
        assert all(0 <= index < PLACES for index in found.values())
        assert all(known[node] == index for node, index in found.items() if node in known)
        known = found


@given(st.lists(steps, max_size=40), st.randoms(use_true_random=False))
def test_once_all_have_reported_every_running_daemon_is_listed_and_writes_stop(
    sequence: list[tuple[Any, ...]], order: random.Random
) -> None:
    model = Model()
    for step in sequence:
        play(model, step)
    living = sorted(model.alive)
    for _ in range(2):
        order.shuffle(living)
        for node in living:
            model.reported(node, ready=True, stale=0)
    at_rest = len(model.versions)
    for node in living:
        model.reported(node, ready=True, stale=0)
    assert len(model.versions) == at_rest
    stale = {each["nodeName"] for each in model.entries} - set(living)
    listed = {
        each["nodeName"]
        for each in model.entries
        if each["nodeName"] in model.alive
        and each["podUID"] == model.alive[each["nodeName"]].pod_uid
        and each["status"] == "Ready"
    }
    assert len(listed) == min(len(living), PLACES - len(stale))


@given(st.permutations(NODES[:PLACES]), st.data())
def test_all_members_have_the_same_peer_list_however_they_join(
    order: list[str], data: st.DataObject
) -> None:
    model = Model()
    for node in order:
        model.born(node)
    for node in order:
        model.reported(node, ready=True, stale=data.draw(st.integers(min_value=0, max_value=4)))
    for node in order:
        model.reported(node, ready=True, stale=0)
    assert sorted(each["index"] for each in model.entries) == list(range(PLACES))
    shuffled = data.draw(st.permutations(model.entries))
    peer_lists = {
        peers.from_entries(each, who)
        for who in model.alive.values()
        for each in (model.entries, shuffled)
    }
    assert len(peer_lists) == 1
    assert not peer_lists.pop().problems


@given(st.permutations(NODES[:PLACES]), st.permutations(NODES[:PLACES]), st.data())
def test_daemons_that_are_replaced_at_the_same_time_get_their_indexes_back(
    order: list[str], again: list[str], data: st.DataObject
) -> None:
    model = Model()
    for node in order:
        model.born(node)
        model.reported(node, ready=True, stale=0)
    before = model.indexes()
    replaced = data.draw(st.sets(st.sampled_from(order)))
    for node in replaced:
        model.left(node) if data.draw(st.booleans()) else model.alive.pop(node)
    if len(replaced) == len(order) and data.draw(st.booleans()):
        model.versions.append(None)  # all its owners are gone
    for node in again:
        if node in replaced:
            model.born(node)
            model.reported(node, ready=True, stale=data.draw(st.integers(min_value=0, max_value=4)))
    assert model.indexes() == before


@given(st.lists(steps, max_size=30), st.sampled_from(NODES))
def test_nobody_changes_the_entry_of_another(sequence: list[tuple[Any, ...]], node: str) -> None:
    model = Model()
    for step in sequence:
        play(model, step)
    before = [each for each in model.entries if each["nodeName"] != node]
    model.born(node)
    model.reported(node, ready=False, stale=3)
    assert [each for each in model.entries if each["nodeName"] != node] == before
    model.left(node)
    assert model.entries == before
