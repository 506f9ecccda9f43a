# SPDX-License-Identifier: Apache-2.0
"""The steps of a teardown. From any state, it ends with nothing left."""

import random
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import NodeName
from nvdra_cd_controller import teardown
from nvdra_cd_controller.domain_snapshot import Child, DomainSnapshot, Kind
from nvdra_cd_controller.teardown import (
    Action,
    Delete,
    RemoveDomainFinalizer,
    RemoveFinalizer,
    RemoveNodeLabel,
)
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import UID

OURS = "resource.nvidia.com/computeDomain"
THEIRS = "example.com/theirs"


def child(kind: Kind, name: str, *finalizers: str, is_terminating: bool = False) -> Child:
    metadata: dict[str, Any] = {"name": name, "namespace": "nvdra", "finalizers": list(finalizers)}
    if is_terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return Child(kind, {"metadata": metadata})


def view(**more: Any) -> DomainSnapshot:
    stored = domain_values.domain_json()
    stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return DomainSnapshot(UID, domain_values.domain(), stored, **more)


def whole() -> DomainSnapshot:
    return view(
        workload_templates=(child("ResourceClaimTemplate", "ring-channel", OURS),),
        daemon_templates=(child("ResourceClaimTemplate", "daemon", OURS),),
        daemonsets=(child("DaemonSet", "daemon", OURS),),
        network_policies=(child("NetworkPolicy", "daemon"),),
        nodes=(NodeName("a"), NodeName("b")),
    )


def done(now: DomainSnapshot, action: Action) -> DomainSnapshot:
    """The snapshot after an action, as the API server would have it."""
    match action:
        case RemoveNodeLabel(node):
            return replace(now, nodes=tuple(each for each in now.nodes if each != node))
        case RemoveDomainFinalizer():
            metadata = now.stored["metadata"]
            left = [each for each in metadata["finalizers"] if each != OURS]
            return replace(now, stored={"metadata": {**metadata, "finalizers": left}})
        case Delete(what):
            return changed(now, what, deletionTimestamp="2026-01-01T00:00:00Z")
        case RemoveFinalizer(what):
            return changed(now, what, finalizers=[f for f in what.finalizers if f != OURS])


def changed(now: DomainSnapshot, what: Child, **metadata: Any) -> DomainSnapshot:
    def after(children: tuple[Child, ...]) -> tuple[Child, ...]:
        moved = (
            Child(each.kind, {"metadata": {**each.object["metadata"], **metadata}})
            if each == what
            else each
            for each in children
        )
        return tuple(each for each in moved if each.finalizers or not each.is_terminating)

    return replace(
        now,
        workload_templates=after(now.workload_templates),
        daemon_templates=after(now.daemon_templates),
        daemonsets=after(now.daemonsets),
        network_policies=after(now.network_policies),
    )


def described(action: Action) -> str:
    match action:
        case Delete(what) | RemoveFinalizer(what):
            return f"{type(action).__name__} {what.kind} {what.name}"
        case RemoveNodeLabel(node):
            return f"RemoveNodeLabel {node}"
        case RemoveDomainFinalizer():
            return "RemoveDomainFinalizer"


def test_a_domain_is_deleted_in_this_order() -> None:
    now, rows = whole(), []
    while (step := teardown.next_step(now)).actions:
        rows.append([described(action) for action in step.actions])
        for action in step.actions:
            now = done(now, action)

    assert rows == [
        ["Delete ResourceClaimTemplate ring-channel"],
        ["Delete ResourceClaimTemplate daemon", "Delete DaemonSet daemon"],
        ["RemoveNodeLabel a", "RemoveNodeLabel b"],
        ["RemoveFinalizer ResourceClaimTemplate ring-channel"],
        ["RemoveFinalizer ResourceClaimTemplate daemon", "RemoveFinalizer DaemonSet daemon"],
        ["Delete NetworkPolicy daemon"],
        ["RemoveDomainFinalizer"],
    ]
    assert step.waits_for == ""


def test_a_child_with_other_finalizers_is_named_in_what_is_waited_for() -> None:
    kept = child("DaemonSet", "daemon", THEIRS, is_terminating=True)

    step = teardown.next_step(view(daemonsets=(kept,)))
    assert step.actions == ()
    assert step.waits_for == (
        "deletion of DaemonSet nvdra/daemon (blocked by other finalizers: example.com/theirs)"
    )


def test_the_finalizer_of_a_domain_without_children_is_removed_at_once() -> None:
    assert teardown.next_step(view()).actions == (RemoveDomainFinalizer(),)


def test_leftovers_of_a_deleted_domain_are_deleted() -> None:
    orphan = child("ResourceClaimTemplate", "daemon", OURS)
    now = DomainSnapshot(UID, None, daemon_templates=(orphan,))

    assert teardown.next_step(now).actions == (Delete(orphan),)
    assert teardown.next_step(DomainSnapshot(UID)) == ((), "")


def test_a_network_policy_stays_as_long_as_a_daemon_and_the_domain_does_not_wait_for_it() -> None:
    policy = child("NetworkPolicy", "daemon")
    pods = (domain_values.daemon_pod("a"),)
    now = view(network_policies=(policy,), pods=pods)
    assert teardown.next_step(now).actions == (RemoveDomainFinalizer(),)

    left = DomainSnapshot(UID, None, network_policies=(policy,), pods=pods)
    assert teardown.next_step(left) == teardown.COMPLETE
    assert teardown.next_step(replace(left, pods=())).actions == (Delete(policy),)


FINALIZERS = st.lists(st.sampled_from([OURS, THEIRS]), unique=True, min_size=1)


def children(kind: Kind, name: str) -> Any:
    one = st.builds(
        lambda finalizers, terminating: child(kind, name, *finalizers, is_terminating=terminating),
        FINALIZERS,
        st.booleans(),
    )
    return st.one_of(st.just(()), st.tuples(one))


VIEWS = st.builds(
    view,
    workload_templates=children("ResourceClaimTemplate", "ring-channel"),
    daemon_templates=children("ResourceClaimTemplate", "daemon"),
    daemonsets=children("DaemonSet", "daemon"),
    network_policies=st.one_of(st.just(()), st.just((child("NetworkPolicy", "daemon"),))),
    pods=st.one_of(st.just(()), st.just((domain_values.daemon_pod("a"),))),
    nodes=st.lists(st.sampled_from([NodeName("a"), NodeName("b")]), unique=True).map(tuple),
)


@given(VIEWS, st.randoms(use_true_random=False))
def test_from_any_state_everything_is_deleted_and_the_domain_last(
    now: DomainSnapshot, chance: random.Random
) -> None:
    """Actions succeed in any order, some fail, and other finalizers are removed at some time."""
    for _ in range(200):
        step = teardown.next_step(now)
        if not step.actions and not step.waits_for:
            break
        for action in chance.sample(step.actions, len(step.actions)):
            if isinstance(action, RemoveDomainFinalizer):
                assert now.children == left_for(now)
                assert now.nodes == ()
            if isinstance(action, RemoveFinalizer):
                assert all(each.is_terminating for each in held(now))
            if chance.random() < 0.7:
                now = done(now, action)
        if not step.actions or chance.random() < 0.1:
            assert step.waits_for
            for each in now.children:
                if THEIRS in each.finalizers:
                    ours = [name for name in each.finalizers if name != THEIRS]
                    now = changed(now, each, finalizers=ours)
    assert now.children == left_for(now)
    assert now.nodes == ()
    assert now.stored["metadata"]["finalizers"] == []


def held(now: DomainSnapshot) -> tuple[Child, ...]:
    """The children for which the domain waits."""
    return tuple(found for found in now.children if found.kind != "NetworkPolicy")


def left_for(now: DomainSnapshot) -> tuple[Child, ...]:
    """What stays when the domain goes: the network policy, as long as there are daemons."""
    return now.network_policies if now.pods else ()
