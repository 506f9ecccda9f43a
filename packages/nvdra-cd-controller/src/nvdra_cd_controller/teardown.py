# SPDX-License-Identifier: Apache-2.0
"""The teardown of a domain: from what is left of it to the next actions, or what to wait for.

The phases of a table are checked from the top each time something has changed. There is no state: a
controller that starts in the middle continues where the other one stopped, and a phase without
objects is complete. Source: docs/reference/compute-domain.md, "Reconcile of a domain", "Scalability
and latency" (KW-10, KW-11).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nvdra_api import names
from nvdra_api.ids import NodeName

from nvdra_cd_controller.domain_snapshot import Child, DomainSnapshot


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a child."""

    child: Child


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove our finalizer from a terminating child."""

    child: Child


@dataclass(frozen=True, slots=True)
class RemoveNodeLabel:
    """Remove the domain's label from a node."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class RemoveDomainFinalizer:
    """Remove our finalizer from the domain itself, which completes the teardown."""


Action = Delete | RemoveFinalizer | RemoveNodeLabel | RemoveDomainFinalizer


class Step(NamedTuple):
    """The next step of a teardown.

    Attributes:
        actions: Actions to perform concurrently; empty if there is nothing to do but wait.
        waits_for: What the deletion waits for, as text; empty if nothing is left.
    """

    actions: tuple[Action, ...]
    waits_for: str


COMPLETE: Final = Step((), "")


def next_step(snapshot: DomainSnapshot) -> Step:
    """The actions of the first incomplete phase, or what that phase waits for."""
    for phase in _PHASES:
        actions = tuple(phase.actions(snapshot))
        if actions:
            return Step(actions, phase.describe(snapshot))
        waits_for = phase.waits_for(snapshot)
        if waits_for:
            return Step((), waits_for)
    return COMPLETE


@dataclass(frozen=True, slots=True)
class _Phase:
    """One phase: it is complete when it has no actions and waits for nothing.

    Attributes:
        describe: What the phase is about while it has actions, as text.
        actions: What to do now.
        waits_for: What must happen once there is nothing to do, as text; empty if nothing.
    """

    describe: Callable[[DomainSnapshot], str]
    actions: Callable[[DomainSnapshot], Iterator[Action]]
    waits_for: Callable[[DomainSnapshot], str]


def _delete_phase(children_of: Callable[[DomainSnapshot], Sequence[Child]]) -> _Phase:
    def actions(snapshot: DomainSnapshot) -> Iterator[Action]:
        return (Delete(child) for child in children_of(snapshot) if not child.is_terminating)

    def describe(snapshot: DomainSnapshot) -> str:
        return _describe_children(children_of(snapshot))

    return _Phase(describe, actions, lambda _: "")


def _remove_finalizer_phase(children_of: Callable[[DomainSnapshot], Sequence[Child]]) -> _Phase:
    def actions(snapshot: DomainSnapshot) -> Iterator[Action]:
        return (
            RemoveFinalizer(child)
            for child in children_of(snapshot)
            if child.is_terminating and names.DOMAIN_FINALIZER in child.finalizers
        )

    def describe(snapshot: DomainSnapshot) -> str:
        return _describe_children(children_of(snapshot))

    return _Phase(describe, actions, describe)


def _workload_children(snapshot: DomainSnapshot) -> Sequence[Child]:
    return snapshot.workload_templates


def _daemon_children(snapshot: DomainSnapshot) -> Sequence[Child]:
    return (*snapshot.daemon_templates, *snapshot.daemonsets)


def _network_policies(snapshot: DomainSnapshot) -> Sequence[Child]:
    """Those that no daemon needs any more.

    The domain does not wait for them: a daemon on a node that is lost does not end.
    """
    return () if snapshot.pods else snapshot.network_policies


def _label_removals(snapshot: DomainSnapshot) -> Iterator[Action]:
    return (RemoveNodeLabel(node) for node in snapshot.nodes)


def _describe_labels(snapshot: DomainSnapshot) -> str:
    return f"removal of the label from {', '.join(snapshot.nodes)}"


def _domain_finalizer_removal(snapshot: DomainSnapshot) -> Iterator[Action]:
    if snapshot.domain is not None and names.DOMAIN_FINALIZER in _finalizers(snapshot):
        yield RemoveDomainFinalizer()


def _describe_other_finalizers(snapshot: DomainSnapshot) -> str:
    others = [name for name in _finalizers(snapshot) if name != names.DOMAIN_FINALIZER]
    return f"other finalizers of the domain: {', '.join(others)}" if others else ""


def _finalizers(snapshot: DomainSnapshot) -> Sequence[str]:
    return snapshot.stored.get("metadata", {}).get("finalizers") or ()


def _describe_children(children: Sequence[Child]) -> str:
    return "deletion of " + ", ".join(map(_describe_child, children)) if children else ""


def _describe_child(child: Child) -> str:
    others = [name for name in child.finalizers if name != names.DOMAIN_FINALIZER]
    blocked = f" (blocked by other finalizers: {', '.join(others)})" if others else ""
    return f"{child}{blocked}"


_PHASES: Final = (
    # The templates go first, so that there are no new claims; then the daemons, so that none is
    # left for which a node could still be labelled.
    _delete_phase(_workload_children),
    _delete_phase(_daemon_children),
    _Phase(_describe_labels, _label_removals, lambda _: ""),
    _remove_finalizer_phase(_workload_children),
    _remove_finalizer_phase(_daemon_children),
    _delete_phase(_network_policies),
    _Phase(
        lambda _: "the domain's deletion", _domain_finalizer_removal, _describe_other_finalizers
    ),
)
