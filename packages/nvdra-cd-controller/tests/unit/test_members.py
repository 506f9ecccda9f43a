# SPDX-License-Identifier: Apache-2.0
"""Members and stale entries do not depend on the order of cliques, pods and labels."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_api.v1beta1.compute_domain import ComputeDomainNode
from nvdra_api.v1beta1.compute_domain_clique import ComputeDomainDaemonInfo
from nvdra_cd_controller import members
from nvdra_cd_controller.members import Member
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_runtime.computedomain.daemon_pods import DaemonPod
from nvdra_runtime.computedomain.imex_links import ImexLinks
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import (
    CLIQUE,
    OTHER_CLIQUE,
    clique,
    clique_entry,
    daemon_pod,
)

A, B, C = (NodeName(f"node-{letter}") for letter in "abc")


def only(found: Sequence[Member]) -> Member:
    assert len(found) == 1
    return found[0]


def test_a_daemon_that_says_it_is_ready_is_a_ready_member() -> None:
    member = only(members.current([clique(clique_entry(A, 3))], [daemon_pod(A)], {A}))

    assert member == Member(A, domain_values.address(A), CLIQUE, 3, is_ready=True)


def test_a_member_that_is_not_ready_has_its_daemons_message() -> None:
    waiting = clique_entry(A, 0, "NotReady", message="IMEX waits for a quorum")

    member = only(members.current([clique(waiting)], [daemon_pod(A)], {A}))
    assert (member.is_ready, member.not_ready_because) == (False, "IMEX waits for a quorum")


def test_a_pod_without_an_entry_is_a_member_that_has_not_joined() -> None:
    member = only(members.current([], [daemon_pod(A)], ()))

    assert not member.is_listed
    assert member.not_ready_because == "its daemon has not joined yet"


def test_a_labelled_node_without_a_pod_is_a_member_that_has_not_joined() -> None:
    member = only(members.current([], [], {A}))

    assert not member.is_listed
    assert member.not_ready_because == "it has no daemon pod yet"


def test_a_pod_that_was_evicted_is_why_a_node_has_none() -> None:
    why = "Evicted: The node was low on resource: memory."
    earlier = daemon_pod(A, created="1", is_finished=True, problem="OutOfpods: too many pods")
    last = daemon_pod(A, created="2", is_finished=True, problem=why)

    for pods in ([earlier, last], [last, earlier]):
        member = only(members.current([], pods, {A}))
        assert member.not_ready_because == f"its daemon's pod {last.name} has ended: {why}"
        assert member.pod_problem == why


def test_a_pod_that_cannot_start_is_why_the_member_is_not_ready() -> None:
    trouble = "ImagePullBackOff: Back-off pulling image"

    member = only(members.current([], [daemon_pod(A, problem=trouble, ip="")], {A}))
    assert member.not_ready_because == member.pod_problem == trouble


def test_a_node_without_fabric_is_as_ready_as_its_pod() -> None:
    bare = daemon_pod(A, clique=CliqueID(""))

    assert only(members.current([], [bare], {A})) == Member(A, bare.ip, is_ready=True)
    late = only(members.current([], [daemon_pod(A, clique=CliqueID(""), is_ready=False)], {A}))
    assert (late.is_ready, late.index) == (False, -1)
    assert not only(members.current([], [daemon_pod(A, clique=CliqueID(""), ip="")], {A})).is_listed


def test_a_new_pod_does_not_inherit_readiness() -> None:
    member = only(
        members.current([clique(clique_entry(A, 0))], [daemon_pod(A, uid=PodUID("new"))], {A})
    )

    assert (member.index, member.is_ready) == (0, False)
    assert member.not_ready_because == "its new daemon has not joined yet"


def test_an_entry_of_the_reference_driver_is_matched_by_its_address() -> None:
    theirs = clique(clique_entry(A, 0, pod_uid=None))

    assert only(members.current([theirs], [daemon_pod(A)], {A})).is_ready
    assert not only(members.current([theirs], [daemon_pod(A, ip="10.9.9.9")], {A})).is_ready
    assert not only(members.current([theirs], [], {A})).is_ready


def test_a_node_that_moved_to_another_clique_is_one_member() -> None:
    old = clique(clique_entry(A, 0, pod_uid=PodUID("gone")))
    new = clique(clique_entry(A, 5, clique=OTHER_CLIQUE), name=OTHER_CLIQUE)

    for both in ([old, new], [new, old]):
        member = only(members.current(both, [daemon_pod(A)], {A}))
        assert (member.clique, member.index, member.is_ready) == (OTHER_CLIQUE, 5, True)
    assert members.stale_entries(old, [new], [daemon_pod(A)], {A}) == (A,)
    assert members.stale_entries(new, [old], [daemon_pod(A)], {A}) == ()


def test_an_entry_is_kept_while_its_node_has_a_pod_or_the_label() -> None:
    held = clique(clique_entry(A, 0), clique_entry(B, 1), clique_entry(C, 2))

    assert members.stale_entries(held, [], [daemon_pod(A, uid=PodUID("new"))], {B}) == (C,)
    assert members.stale_entries(held, [], [], ()) == (A, B, C)
    assert members.stale_entries(held, [], [daemon_pod(A, is_finished=True)], {B, C}) == (A,)
    assert members.stale_entries(held, [], [daemon_pod(A, is_terminating=True)], {B, C}) == ()


def test_a_running_daemon_of_the_reference_driver_keeps_its_entry() -> None:
    theirs = clique(clique_entry(A, 0, pod_uid=None, ip_address="10.1.1.1"))
    assert members.stale_entries(theirs, [], [daemon_pod(A)], ()) == ()


def test_a_terminating_pod_without_an_entry_is_no_member() -> None:
    assert members.current([], [daemon_pod(A, is_terminating=True)], ()) == ()


def test_a_stale_entry_is_no_member() -> None:
    assert members.current([clique(clique_entry(A, 0))], [], ()) == ()


def test_a_daemon_that_does_not_use_cliques_keeps_its_entry_in_the_status() -> None:
    listed = ComputeDomainNode(
        name=A, ip_address=domain_values.address(A), clique_id=CLIQUE, index=2, status="Ready"
    )

    member = only(members.current([], [daemon_pod(A, writes_status=True)], {A}, [listed]))
    assert (member.index, member.is_ready, member.is_listed) == (2, True, True)
    ours = only(members.current([], [daemon_pod(A)], {A}, [listed]))
    assert not ours.is_listed
    moved = only(
        members.current([], [daemon_pod(A, writes_status=True, ip="10.9.9.9")], {A}, [listed])
    )
    assert not moved.is_listed


UIDS = [PodUID(f"pod-{i}") for i in range(5)]
NODES = [NodeName(f"n{i}") for i in range(6)]
PODS = st.builds(
    daemon_pod,
    st.sampled_from(NODES),
    uid=st.sampled_from(UIDS),
    ip=st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
    created=st.sampled_from(["1", "2"]),
    is_finished=st.booleans(),
    is_terminating=st.booleans(),
    is_ready=st.booleans(),
    writes_status=st.booleans(),
    clique=st.sampled_from([None, CliqueID(""), CLIQUE]),
)
ENTRIES = st.lists(
    st.builds(
        clique_entry,
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
    entries: tuple[list[ComputeDomainDaemonInfo], list[ComputeDomainDaemonInfo]],
    pods: list[DaemonPod],
    labelled: set[NodeName],
    chance: random.Random,
) -> None:
    moved = [each.model_copy(update={"clique_id": OTHER_CLIQUE}) for each in entries[1]]
    one, other = clique(*entries[0]), clique(*moved, name=OTHER_CLIQUE)
    expected = members.current([one, other], pods, labelled)
    stale = members.stale_entries(one, [other], pods, labelled)

    shuffled = [*pods, *pods]
    chance.shuffle(shuffled)
    mixed = clique(*chance.sample(entries[0], len(entries[0])))
    nodes = chance.sample(sorted(labelled), len(labelled))
    assert members.current([other, mixed, other], shuffled, nodes) == expected
    assert members.stale_entries(mixed, [other, other], shuffled, nodes) == stale


@given(
    ENTRIES,
    st.lists(PODS, max_size=8, unique_by=lambda each: each.uid),
    st.sets(st.sampled_from(NODES)),
)
def test_every_node_is_at_most_one_member_and_pruning_removes_none(
    entries: list[ComputeDomainDaemonInfo], pods: list[DaemonPod], labelled: set[NodeName]
) -> None:
    before = members.current([clique(*entries)], pods, labelled)
    gone = members.stale_entries(clique(*entries), [], pods, labelled)
    left = [each for each in entries if each.node_name not in gone]

    nodes = [member.node for member in before]
    assert nodes == sorted(set(nodes))
    assert members.current([clique(*left)], pods, labelled) == before
    assert members.stale_entries(clique(*left), [], pods, labelled) == ()


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["start", "join", "crash", "leave", "prune", "prune"]),
        st.sampled_from(NODES),
    ),
    max_size=60,
)


@pytest.mark.parametrize("max_nodes", [6, 18])
@given(moves=MOVES)
def test_indexes_are_unique_and_a_node_keeps_its_own(
    max_nodes: int, moves: list[tuple[str, NodeName]]
) -> None:
    """Daemons join as the protocol says, and the controller prunes at any time in between."""
    entries: dict[NodeName, ComputeDomainDaemonInfo] = {}
    pods: dict[NodeName, DaemonPod] = {}
    labelled: set[NodeName] = set()
    for number, (move, node) in enumerate(moves):
        if move == "start":
            labelled.add(node)
            pods[node] = daemon_pod(node, uid=PodUID(f"{node}-{number}"))
        elif move == "join" and node in pods:
            taken = {each.index for name, each in entries.items() if name != node}
            free = next(i for i in range(max_nodes) if i not in taken)
            index = entries[node].index if node in entries else free
            entries[node] = clique_entry(node, index, "Ready", pod_uid=pods[node].uid)
        elif move == "crash":
            pods.pop(node, None)
        elif move == "leave":
            pods.pop(node, None)
            entries.pop(node, None)
            labelled.discard(node)
        elif move == "prune":
            kept = {name: each.index for name, each in entries.items() if name in labelled}
            for gone in members.stale_entries(
                clique(*entries.values()), [], pods.values(), labelled
            ):
                del entries[gone]
            assert {name: each.index for name, each in entries.items()} == kept
        places = [each.index for each in entries.values()]
        assert len(places) == len(set(places))
        for member in members.current([clique(*entries.values())], pods.values(), labelled):
            assert member.is_ready == (
                member.node in pods
                and member.node in entries
                and entries[member.node].pod_uid == pods[member.node].uid
            )


def test_of_two_pods_of_a_node_the_one_that_stays_is_the_current_one() -> None:
    """Whichever of them is newer: a pod that is deleted by hand may be the younger one."""
    for ended_at, made_at in (("2026-01-01", "2026-01-02"), ("2026-01-02", "2026-01-01")):
        pods = [
            daemon_pod(A, uid=PodUID("ends"), ip="10.4.0.1", created=ended_at, is_terminating=True),
            daemon_pod(A, uid=PodUID("stays"), ip="10.4.0.2", created=made_at),
        ]
        for pod_uid, is_ready in (("ends", False), ("stays", True)):
            entry = clique_entry(A, 0, pod_uid=PodUID(pod_uid))
            member = only(members.current([clique(entry)], pods, {A}))
            assert member.is_ready == is_ready, (ended_at, pod_uid)
        (waiting,) = members.current([], pods, {A})
        assert waiting.ip == "10.4.0.2"


def test_a_daemon_whose_pod_is_down_is_not_ready_whatever_it_wrote() -> None:
    down = daemon_pod(A, is_ready=False, down_because="its daemon's pod is not ready any more")
    member = only(members.current([clique(clique_entry(A, 3))], [down], {A}))

    assert (member.is_ready, member.not_ready_because) == (False, down.down_because)


def test_what_a_daemon_wrote_into_the_status_stays_while_it_does_not_count() -> None:
    down = daemon_pod(A, writes_status=True, is_ready=False, down_because="it is down")
    written = ComputeDomainNode(
        name=A, ip_address=down.ip, clique_id=CLIQUE, index=1, status="Ready"
    )
    member = only(members.current([], [down], {A}, [written]))

    assert (member.is_ready, member.not_ready_because) == (False, "it is down")
    assert member.written_status == "Ready"


def test_a_pod_without_an_address_inherits_no_entry_of_the_reference_driver() -> None:
    theirs = clique_entry(A, 3, pod_uid=None)
    member = only(members.current([clique(theirs)], [daemon_pod(A, ip="")], {A}))

    assert (member.is_ready, member.index) == (False, 3)
    assert member.not_ready_because == "its new daemon has not joined yet"


@pytest.mark.parametrize(
    ("said", "because"),
    [
        (Announcement("10.4.0.1", message="nvidia-imex ended"), "nvidia-imex ended"),
        (Announcement("10.4.0.1", has_left=True), "its daemon has ended"),
    ],
)
def test_what_a_daemon_takes_back_counts_before_the_clique_is_written(
    said: Announcement, because: str
) -> None:
    pod = daemon_pod(A, announcement=said)
    member = only(members.current([clique(clique_entry(A, 3))], [pod], {A}))

    assert (member.is_ready, member.not_ready_because) == (False, because)


def test_a_daemon_is_ready_only_once_its_entry_says_so() -> None:
    pod = daemon_pod(A, announcement=Announcement("10.4.0.1", is_ready=True))
    starting = clique_entry(A, 3, "NotReady", message="starting")

    assert not only(members.current([clique(starting)], [pod], {A})).is_ready
    assert only(members.current([clique(clique_entry(A, 3))], [pod], {A})).is_ready


def test_a_pod_that_could_not_be_created_is_a_problem_of_each_member_without_one() -> None:
    cause = "Error creating: pods is forbidden: exceeded quota: none"
    found = {
        str(each.node): each
        for each in members.current(
            [], [daemon_pod("a")], [NodeName("a"), NodeName("b")], no_pod_because=cause
        )
    }
    assert found["b"].pod_problem == f"its daemon's pod cannot be created: {cause}"
    assert (found["a"].has_pod, found["b"].has_pod) == (True, False)
    assert not found["a"].pod_problem


def test_a_daemon_that_runs_and_has_said_nothing_does_not_reach_the_api_server() -> None:
    since = "2026-01-01T00:00:00Z"
    silent = daemon_pod("a", running_since=since, clique=None)
    (found,) = members.current([], [silent], [NodeName("a")])
    assert found.silent_since == since
    assert f"its daemon runs since {since} and has not joined yet" in found.not_ready_because
    assert "network policies of the namespace nvdra" in found.not_ready_because
    labelled = daemon_pod("a", running_since=since, clique=CliqueID("c.1"))
    (found,) = members.current([], [labelled], [NodeName("a")])
    assert not found.silent_since


def test_the_clique_that_a_node_has_moved_to_is_that_of_its_current_pod() -> None:
    joined, node = [clique(clique_entry("a", 0))], [NodeName("a")]
    moved = daemon_pod("a", links=ImexLinks(node_clique=CliqueID("c.5")))
    assert only(members.current(joined, [moved], node)).moved_to == "c.5"
    later = replace(moved, uid=PodUID("later"))
    assert only(members.current(joined, [later], node)).moved_to is None
