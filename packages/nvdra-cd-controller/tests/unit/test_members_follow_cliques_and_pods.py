"""Cliques, pods and labels → members and stale entries, the same in whatever order they come."""

import random
from collections.abc import Sequence

import cd_objects
import pytest
from cd_objects import CLIQUE, OTHER_CLIQUE, clique, entry, pod
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.types.domains import CliqueDaemon, DomainNode
from nvdra_api.types.ids import CliqueID, NodeName, PodUID
from nvdra_cd_controller import members
from nvdra_cd_controller.members import Member

A, B, C = (NodeName(f"node-{letter}") for letter in "abc")


def only(found: Sequence[Member]) -> Member:
    assert len(found) == 1
    return found[0]


def test_a_daemon_that_says_it_is_ready_is_a_ready_member() -> None:
    member = only(members.of([clique(entry(A, 3))], [pod(A)], {A}))

    assert member == Member(A, cd_objects.address(A), CLIQUE, 3, is_ready=True)


def test_a_daemon_that_is_not_ready_says_what_it_lacks() -> None:
    waiting = entry(A, 0, "NotReady", message="IMEX waits for a quorum")

    member = only(members.of([clique(waiting)], [pod(A)], {A}))
    assert (member.is_ready, member.lacks) == (False, "IMEX waits for a quorum")


def test_a_pod_without_an_entry_is_a_member_that_has_not_joined() -> None:
    member = only(members.of([], [pod(A)], ()))

    assert not member.is_listed
    assert member.lacks == "its daemon has not joined yet"


def test_a_labelled_node_without_a_pod_is_a_member_that_has_not_joined() -> None:
    member = only(members.of([], [], {A}))

    assert not member.is_listed
    assert member.lacks == "it has no daemon pod yet"


def test_what_keeps_a_pod_from_starting_is_what_the_member_lacks() -> None:
    trouble = "ImagePullBackOff: Back-off pulling image"

    member = only(members.of([], [pod(A, trouble=trouble, ip="")], {A}))
    assert member.lacks == member.trouble == trouble


def test_a_node_without_fabric_is_as_ready_as_its_pod() -> None:
    bare = pod(A, clique=CliqueID(""))

    assert only(members.of([], [bare], {A})) == Member(A, bare.ip, is_ready=True)
    late = only(members.of([], [pod(A, clique=CliqueID(""), is_ready=False)], {A}))
    assert (late.is_ready, late.index) == (False, -1)
    assert not only(members.of([], [pod(A, clique=CliqueID(""), ip="")], {A})).is_listed


def test_a_new_pod_is_not_ready_by_the_word_of_the_one_before() -> None:
    member = only(members.of([clique(entry(A, 0))], [pod(A, uid=PodUID("new"))], {A}))

    assert (member.index, member.is_ready) == (0, False)
    assert member.lacks == "its new daemon has not joined yet"


def test_an_entry_of_the_reference_driver_is_told_by_its_address() -> None:
    theirs = clique(entry(A, 0, pod_uid=None))

    assert only(members.of([theirs], [pod(A)], {A})).is_ready
    assert not only(members.of([theirs], [pod(A, ip="10.9.9.9")], {A})).is_ready
    assert not only(members.of([theirs], [], {A})).is_ready


def test_a_node_that_moved_to_another_clique_is_one_member_where_its_pod_is() -> None:
    old = clique(entry(A, 0, pod_uid=PodUID("gone")))
    new = clique(entry(A, 5, clique=OTHER_CLIQUE), name=OTHER_CLIQUE)

    for both in ([old, new], [new, old]):
        member = only(members.of(both, [pod(A)], {A}))
        assert (member.clique, member.index, member.is_ready) == (OTHER_CLIQUE, 5, True)
    assert members.stale(old, [new], [pod(A)], {A}) == (A,)
    assert members.stale(new, [old], [pod(A)], {A}) == ()


def test_an_entry_stays_while_its_node_has_a_pod_or_the_label() -> None:
    held = clique(entry(A, 0), entry(B, 1), entry(C, 2))

    assert members.stale(held, [], [pod(A, uid=PodUID("new"))], {B}) == (C,)
    assert members.stale(held, [], [], ()) == (A, B, C)
    assert members.stale(held, [], [pod(A, is_over=True)], {B, C}) == (A,)
    assert members.stale(held, [], [pod(A, is_leaving=True)], {B, C}) == ()


def test_a_running_daemon_of_the_reference_driver_keeps_its_entry() -> None:
    theirs = clique(entry(A, 0, pod_uid=None, ip_address="10.1.1.1"))
    assert members.stale(theirs, [], [pod(A)], ()) == ()


def test_a_pod_that_leaves_and_has_taken_its_entry_away_is_no_member() -> None:
    assert members.of([], [pod(A, is_leaving=True)], ()) == ()


def test_a_stale_entry_is_no_member() -> None:
    assert members.of([clique(entry(A, 0))], [], ()) == ()


def test_a_daemon_that_was_told_not_to_use_cliques_keeps_its_place_in_the_status() -> None:
    listed = DomainNode(
        name=A, ip_address=cd_objects.address(A), clique_id=CLIQUE, index=2, status="Ready"
    )

    member = only(members.of([], [pod(A, writes_status=True)], {A}, [listed]))
    assert (member.index, member.is_ready, member.is_listed) == (2, True, True)
    ours = only(members.of([], [pod(A)], {A}, [listed]))
    assert not ours.is_listed
    moved = only(members.of([], [pod(A, writes_status=True, ip="10.9.9.9")], {A}, [listed]))
    assert not moved.is_listed


UIDS = [PodUID(f"pod-{i}") for i in range(5)]
NODES = [NodeName(f"n{i}") for i in range(6)]
PODS = st.builds(
    pod,
    st.sampled_from(NODES),
    uid=st.sampled_from(UIDS),
    ip=st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
    created=st.sampled_from(["1", "2"]),
    is_over=st.booleans(),
    is_leaving=st.booleans(),
    is_ready=st.booleans(),
    writes_status=st.booleans(),
    clique=st.sampled_from([None, CliqueID(""), CLIQUE]),
)
ENTRIES = st.lists(
    st.builds(
        entry,
        st.sampled_from(NODES),
        st.integers(0, 5),
        st.sampled_from(["Ready", "NotReady"]),
        pod_uid=st.sampled_from([None, *UIDS]),
        ip_address=st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    ),
    max_size=6,
    unique_by=lambda each: each.node_name,
)


@given(
    st.tuples(ENTRIES, ENTRIES),
    st.lists(PODS, max_size=8, unique_by=lambda each: each.uid),
    st.sets(st.sampled_from(NODES)),
    st.randoms(use_true_random=False),
)
def test_members_and_stale_entries_do_not_depend_on_any_order_or_repetition(
    entries: tuple[list[CliqueDaemon], list[CliqueDaemon]],
    pods: list[DaemonPod],
    labelled: set[NodeName],
    chance: random.Random,
) -> None:
    moved = [each.model_copy(update={"clique_id": OTHER_CLIQUE}) for each in entries[1]]
    one, other = clique(*entries[0]), clique(*moved, name=OTHER_CLIQUE)
    expected = members.of([one, other], pods, labelled)
    stale = members.stale(one, [other], pods, labelled)

    shuffled = [*pods, *pods]
    chance.shuffle(shuffled)
    mixed = clique(*chance.sample(entries[0], len(entries[0])))
    nodes = chance.sample(sorted(labelled), len(labelled))
    assert members.of([other, mixed, other], shuffled, nodes) == expected
    assert members.stale(mixed, [other, other], shuffled, nodes) == stale


@given(
    ENTRIES,
    st.lists(PODS, max_size=8, unique_by=lambda each: each.uid),
    st.sets(st.sampled_from(NODES)),
)
def test_every_node_is_one_member_at_most_and_pruning_takes_no_member_away(
    entries: list[CliqueDaemon], pods: list[DaemonPod], labelled: set[NodeName]
) -> None:
    before = members.of([clique(*entries)], pods, labelled)
    gone = members.stale(clique(*entries), [], pods, labelled)
    left = [each for each in entries if each.node_name not in gone]

    nodes = [member.node for member in before]
    assert nodes == sorted(set(nodes))
    assert members.of([clique(*left)], pods, labelled) == before
    assert members.stale(clique(*left), [], pods, labelled) == ()


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["start", "join", "crash", "leave", "prune", "prune"]),
        st.sampled_from(NODES),
    ),
    max_size=60,
)


@pytest.mark.parametrize("max_nodes", [6, 18])
@given(moves=MOVES)
def test_whatever_happens_places_are_unique_and_a_node_keeps_its_own(
    max_nodes: int, moves: list[tuple[str, NodeName]]
) -> None:
    """Daemons join as the protocol says, the controller prunes at any moment between."""
    entries: dict[NodeName, CliqueDaemon] = {}
    pods: dict[NodeName, DaemonPod] = {}
    labelled: set[NodeName] = set()
    for number, (move, node) in enumerate(moves):
        if move == "start":
            labelled.add(node)
            pods[node] = pod(node, uid=PodUID(f"{node}-{number}"))
        elif move == "join" and node in pods:
            taken = {each.index for name, each in entries.items() if name != node}
            free = next(i for i in range(max_nodes) if i not in taken)
            index = entries[node].index if node in entries else free
            entries[node] = entry(node, index, "Ready", pod_uid=pods[node].uid)
        elif move == "crash":
            pods.pop(node, None)
        elif move == "leave":
            pods.pop(node, None)
            entries.pop(node, None)
            labelled.discard(node)
        elif move == "prune":
            kept = {name: each.index for name, each in entries.items() if name in labelled}
            for gone in members.stale(clique(*entries.values()), [], pods.values(), labelled):
                del entries[gone]
            assert {name: each.index for name, each in entries.items()} == kept
        places = [each.index for each in entries.values()]
        assert len(places) == len(set(places))
        for member in members.of([clique(*entries.values())], pods.values(), labelled):
            assert member.is_ready == (
                member.node in pods
                and member.node in entries
                and entries[member.node].pod_uid == pods[member.node].uid
            )
