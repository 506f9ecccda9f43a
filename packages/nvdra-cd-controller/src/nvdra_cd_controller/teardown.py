"""What is still there of a domain that goes → the next things to do, or what to wait for.

A table of phases, worked through from the top each time something has changed. There is no state:
a controller that starts in the middle goes on where the other stopped, and a child that is missing
is a phase that is done. Source: spec/compute-domain.md §6.5, §14.1 (KW-10, KW-11).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nvdra_api.types import names
from nvdra_api.types.ids import NodeName

from nvdra_cd_controller.view import Child, View


@dataclass(frozen=True, slots=True)
class Delete:
    """Ask the API server to delete a child."""

    child: Child


@dataclass(frozen=True, slots=True)
class Release:
    """Take our finalizer from a child that is being deleted."""

    child: Child


@dataclass(frozen=True, slots=True)
class Unlabel:
    """Take the domain's label from a node."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Take our finalizer from the domain itself: the end."""


Action = Delete | Release | Unlabel | Dismiss


class Step(NamedTuple):
    """What to do next.

    Attributes:
        actions: To be done together; none when there is nothing to do but to wait.
        waits_for: What must happen first, for people; empty when nothing is left at all.
    """

    actions: tuple[Action, ...]
    waits_for: str


def next_step(view: View) -> Step:
    """The first phase that is not done: what to do in it, or what it waits for."""
    for phase in _PHASES:
        actions = tuple(phase.actions(view))
        if actions:
            return Step(actions, phase.text(view))
        waits_for = phase.waits_for(view)
        if waits_for:
            return Step((), waits_for)
    return Step((), "")


@dataclass(frozen=True, slots=True)
class _Phase:
    """One row: actions first; when there are none left, what must be gone before the next row."""

    text: Callable[[View], str]
    actions: Callable[[View], Iterator[Action]]
    waits_for: Callable[[View], str]


def _deletion(of: Callable[[View], Sequence[Child]]) -> _Phase:
    def actions(view: View) -> Iterator[Action]:
        return (Delete(child) for child in of(view) if not child.is_leaving)

    return _Phase(lambda view: _listed(of(view)), actions, lambda _: "")


def _departure(of: Callable[[View], Sequence[Child]]) -> _Phase:
    def actions(view: View) -> Iterator[Action]:
        return (
            Release(child)
            for child in of(view)
            if child.is_leaving and names.DOMAIN_FINALIZER in child.finalizers
        )

    def text(view: View) -> str:
        return _listed(of(view))

    return _Phase(text, actions, text)


def _workload(view: View) -> Sequence[Child]:
    return view.workload_templates


def _daemons(view: View) -> Sequence[Child]:
    return (*view.daemon_templates, *view.daemonsets)


def _unlabelled(view: View) -> Iterator[Action]:
    return (Unlabel(node) for node in view.nodes)


def _nodes(view: View) -> str:
    return f"the label of {', '.join(view.nodes)} to go"


def _dismissed(view: View) -> Iterator[Action]:
    if view.domain is not None and names.DOMAIN_FINALIZER in _finalizers(view):
        yield Dismiss()


def _others(view: View) -> str:
    others = [name for name in _finalizers(view) if name != names.DOMAIN_FINALIZER]
    return f"the finalizers {', '.join(others)} of others" if others else ""


def _finalizers(view: View) -> Sequence[str]:
    return view.stored.get("metadata", {}).get("finalizers") or ()


def _listed(children: Sequence[Child]) -> str:
    return ", ".join(map(_described, children))


def _described(child: Child) -> str:
    others = [name for name in child.finalizers if name != names.DOMAIN_FINALIZER]
    kept = f", which the finalizers {', '.join(others)} keep" if others else ""
    return f"{child} to go{kept}"


_PHASES: Final = (
    # No new claims first; then no daemons that a node could still be labelled for.
    _deletion(_workload),
    _deletion(_daemons),
    _Phase(_nodes, _unlabelled, lambda _: ""),
    _departure(_workload),
    _departure(_daemons),
    _Phase(lambda _: "the domain itself", _dismissed, _others),
)
