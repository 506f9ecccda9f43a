"""What is left of a domain → the next things to do; from any state, it ends with nothing."""

import random
from dataclasses import replace
from typing import Any

import cd_objects
from cd_objects import UID
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.types.ids import NodeName
from nvdra_cd_controller import teardown
from nvdra_cd_controller.teardown import Action, Delete, Dismiss, Release, Unlabel
from nvdra_cd_controller.view import Child, Kind, View

OURS = "resource.nvidia.com/computeDomain"
THEIRS = "example.com/theirs"


def child(kind: Kind, name: str, *finalizers: str, is_leaving: bool = False) -> Child:
    metadata: dict[str, Any] = {"name": name, "namespace": "nvdra", "finalizers": list(finalizers)}
    if is_leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return Child(kind, {"metadata": metadata})


def view(**more: Any) -> View:
    stored = cd_objects.document()
    stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return View(UID, cd_objects.domain(), stored, **more)


def whole() -> View:
    return view(
        workload_templates=(child("ResourceClaimTemplate", "ring-channel", OURS),),
        daemon_templates=(child("ResourceClaimTemplate", "daemon", OURS),),
        daemonsets=(child("DaemonSet", "daemon", OURS),),
        nodes=(NodeName("a"), NodeName("b")),
    )


def done(now: View, action: Action) -> View:
    """The world after an action, as the API server would have it."""
    match action:
        case Unlabel(node):
            return replace(now, nodes=tuple(each for each in now.nodes if each != node))
        case Dismiss():
            metadata = now.stored["metadata"]
            left = [each for each in metadata["finalizers"] if each != OURS]
            return replace(now, stored={"metadata": {**metadata, "finalizers": left}})
        case Delete(what):
            return changed(now, what, deletionTimestamp="2026-01-01T00:00:00Z")
        case Release(what):
            return changed(now, what, finalizers=[f for f in what.finalizers if f != OURS])


def changed(now: View, what: Child, **metadata: Any) -> View:
    def after(children: tuple[Child, ...]) -> tuple[Child, ...]:
        moved = (
            Child(each.kind, {"metadata": {**each.object["metadata"], **metadata}})
            if each == what
            else each
            for each in children
        )
        return tuple(each for each in moved if each.finalizers or not each.is_leaving)

    return replace(
        now,
        workload_templates=after(now.workload_templates),
        daemon_templates=after(now.daemon_templates),
        daemonsets=after(now.daemonsets),
    )


def described(action: Action) -> str:
    match action:
        case Delete(what) | Release(what):
            return f"{type(action).__name__} {what.kind} {what.name}"
        case Unlabel(node):
            return f"Unlabel {node}"
        case Dismiss():
            return "Dismiss"


def test_a_whole_domain_goes_in_this_order() -> None:
    now, rows = whole(), []
    while (step := teardown.next_step(now)).actions:
        rows.append([described(action) for action in step.actions])
        for action in step.actions:
            now = done(now, action)

    assert rows == [
        ["Delete ResourceClaimTemplate ring-channel"],
        ["Delete ResourceClaimTemplate daemon", "Delete DaemonSet daemon"],
        ["Unlabel a", "Unlabel b"],
        ["Release ResourceClaimTemplate ring-channel"],
        ["Release ResourceClaimTemplate daemon", "Release DaemonSet daemon"],
        ["Dismiss"],
    ]
    assert step.waits_for == ""


def test_a_child_that_somebody_else_keeps_is_waited_for_by_name() -> None:
    kept = child("DaemonSet", "daemon", THEIRS, is_leaving=True)

    step = teardown.next_step(view(daemonsets=(kept,)))
    assert step.actions == ()
    assert step.waits_for == (
        "DaemonSet nvdra/daemon to go, which the finalizers example.com/theirs keep"
    )


def test_a_domain_without_children_is_let_go_at_once() -> None:
    assert teardown.next_step(view()).actions == (Dismiss(),)


def test_what_is_left_of_a_domain_that_is_gone_goes_without_it() -> None:
    orphan = child("ResourceClaimTemplate", "daemon", OURS)
    now = View(UID, None, daemon_templates=(orphan,))

    assert teardown.next_step(now).actions == (Delete(orphan),)
    assert teardown.next_step(View(UID)) == ((), "")


FINALIZERS = st.lists(st.sampled_from([OURS, THEIRS]), unique=True, min_size=1)


def children(kind: Kind, name: str) -> Any:
    one = st.builds(
        lambda finalizers, leaving: child(kind, name, *finalizers, is_leaving=leaving),
        FINALIZERS,
        st.booleans(),
    )
    return st.one_of(st.just(()), st.tuples(one))


VIEWS = st.builds(
    view,
    workload_templates=children("ResourceClaimTemplate", "ring-channel"),
    daemon_templates=children("ResourceClaimTemplate", "daemon"),
    daemonsets=children("DaemonSet", "daemon"),
    nodes=st.lists(st.sampled_from([NodeName("a"), NodeName("b")]), unique=True).map(tuple),
)


@given(VIEWS, st.randoms(use_true_random=False))
def test_from_any_state_everything_goes_and_the_domain_last(
    now: View, chance: random.Random
) -> None:
    """Actions succeed in any order and some are lost; others let their children go at some time."""
    for _ in range(200):
        step = teardown.next_step(now)
        if not step.actions and not step.waits_for:
            break
        for action in chance.sample(step.actions, len(step.actions)):
            if isinstance(action, Dismiss):
                assert now.children == ()
                assert now.nodes == ()
            if isinstance(action, Release):
                assert all(each.is_leaving for each in now.children)
            if chance.random() < 0.7:
                now = done(now, action)
        if not step.actions or chance.random() < 0.1:
            assert step.waits_for
            for each in now.children:
                if THEIRS in each.finalizers:
                    ours = [name for name in each.finalizers if name != THEIRS]
                    now = changed(now, each, finalizers=ours)
    assert now.children == ()
    assert now.nodes == ()
    assert now.stored["metadata"]["finalizers"] == []
