"""Any order of joins, leaves, deaths, reports, duplicates and stale reads: the clique stays right.

The API server's part is its one rule: a write over a version that is not current is refused.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types.errors import RetryableError
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_imex_daemon import entries, peers, shapes
from nvdra_imex_daemon.entries import Member, Report
from nvdra_imex_daemon.shapes import CliqueShape, Pod

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
PLACES = 5
NODES = tuple("abcdef")


@dataclass
class Model:
    """One stored clique, every version it had, and the daemons that live."""

    versions: list[JsonObject | None] = field(default_factory=lambda: [None])
    alive: dict[str, Member] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """What each node keeps for a successor."""
    pods: int = 0

    @property
    def entries(self) -> list[dict[str, Any]]:
        stored = self.versions[-1]
        return list(stored["daemons"]) if stored is not None else []

    def shape(self, who: Member) -> CliqueShape:
        return CliqueShape(DOMAIN, who, Pod("nvdra", f"daemon-{who.pod_uid}", who.pod_uid))

    def born(self, node: str) -> None:
        """A pod on the node; one that is there already is taken for dead."""
        self.pods += 1
        address = f"10.4.0.{self.pods % 250 + 1}"
        uid = PodUID(f"pod-{self.pods}")
        self.alive[node] = Member(CLIQUE, NodeName(node), address, uid, PLACES)

    def told(self, node: str, *, ready: bool, stale: int) -> None:
        """The daemon on the node makes its entry true, thinking of an old version first."""
        who = self.alive.get(node)
        if who is None:
            return
        report = Report(is_ready=ready, message="" if ready else "starting")
        at = max(0, len(self.versions) - 1 - stale)
        while True:
            try:
                change = shapes.wanted(
                    self.shape(who),
                    self.versions[at],
                    who,
                    report,
                    preferred=self.places.get(node),
                    is_pruned=False,
                )
            except RetryableError:
                change = None
            if at == len(self.versions) - 1:
                break
            if change is None:
                return  # nothing to write as far as it knows; it hears of the rest later
            at = len(self.versions) - 1  # refused: somebody was faster
        if change is not None:
            self.versions.append(change)
            self.places.update(self.indexes())

    def indexes(self) -> dict[str, int]:
        return {each["nodeName"]: each["index"] for each in self.entries}

    def left(self, node: str) -> None:
        who, stored = self.alive.pop(node, None), self.versions[-1]
        if who is not None and stored is not None:
            after = entries.without_us(stored["daemons"], who)
            self.versions.append({**stored, "daemons": after})


steps = st.one_of(
    st.tuples(st.just("born"), st.sampled_from(NODES)),
    st.tuples(st.just("dies"), st.sampled_from(NODES)),
    st.tuples(st.just("leaves"), st.sampled_from(NODES)),
    st.tuples(st.just("lost"), st.just("")),
    st.tuples(
        st.just("tells"),
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
        model.told(node, ready=rest[0], stale=rest[1])


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
def test_once_everybody_has_told_who_lives_is_listed_and_nothing_is_left_to_write(
    sequence: list[tuple[Any, ...]], order: random.Random
) -> None:
    model = Model()
    for step in sequence:
        play(model, step)
    living = sorted(model.alive)
    for _ in range(2):
        order.shuffle(living)
        for node in living:
            model.told(node, ready=True, stale=0)
    at_rest = len(model.versions)
    for node in living:
        model.told(node, ready=True, stale=0)
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
def test_however_they_join_their_roster_is_the_same_for_all(
    order: list[str], data: st.DataObject
) -> None:
    model = Model()
    for node in order:
        model.born(node)
    for node in order:
        model.told(node, ready=True, stale=data.draw(st.integers(min_value=0, max_value=4)))
    for node in order:
        model.told(node, ready=True, stale=0)
    assert sorted(each["index"] for each in model.entries) == list(range(PLACES))
    shuffled = data.draw(st.permutations(model.entries))
    rosters = {
        peers.roster(each, who)
        for who in model.alive.values()
        for each in (model.entries, shuffled)
    }
    assert len(rosters) == 1
    assert not rosters.pop().problems


@given(st.permutations(NODES[:PLACES]), st.permutations(NODES[:PLACES]), st.data())
def test_whoever_is_replaced_at_once_comes_back_to_the_same_indexes(
    order: list[str], again: list[str], data: st.DataObject
) -> None:
    model = Model()
    for node in order:
        model.born(node)
        model.told(node, ready=True, stale=0)
    before = model.indexes()
    replaced = data.draw(st.sets(st.sampled_from(order)))
    for node in replaced:
        model.left(node) if data.draw(st.booleans()) else model.alive.pop(node)
    if len(replaced) == len(order) and data.draw(st.booleans()):
        model.versions.append(None)  # nobody owns it any more
    for node in again:
        if node in replaced:
            model.born(node)
            model.told(node, ready=True, stale=data.draw(st.integers(min_value=0, max_value=4)))
    assert model.indexes() == before


@given(st.lists(steps, max_size=30), st.sampled_from(NODES))
def test_nobody_touches_the_entry_of_another(sequence: list[tuple[Any, ...]], node: str) -> None:
    model = Model()
    for step in sequence:
        play(model, step)
    before = [each for each in model.entries if each["nodeName"] != node]
    model.born(node)
    model.told(node, ready=False, stale=3)
    assert [each for each in model.entries if each["nodeName"] != node] == before
    model.left(node)
    assert model.entries == before
