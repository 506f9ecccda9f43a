# SPDX-License-Identifier: Apache-2.0
"""Judges a week: which claims were lost or doubled, which pods stuck, which waits nobody explained.

Pure: it reads a recorded history, the causes that there were, and what the pods have written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Final, TypeVar

from nvdra_testing.week_of_a_node.history import (
    UNSCHEDULABLE,
    History,
    PodHistory,
    Told,
    gpu_of,
)
from nvdra_testing.week_of_a_node.pods import GRACE_S

T = TypeVar("T")

QUIET_S: Final = 45.0
"""Nobody has to explain a wait that is shorter: a pod of a loaded machine takes as long."""

STUCK_S: Final = 150.0
"""When the cause is gone a pod goes on within this time: the kubelet tries again 60 to 90 s after a
failed prepare, a call of it takes up to 45 s, and the rest is for a loaded machine.
"""

LATE_S: Final = 60.0
"""How long after the end of its cause a reason may still be told: a call of 45 s has it as its last
word, and the kubelet reports in intervals.
"""

FORCED_S: Final = GRACE_S + 15.0
"""How long a process of a pod that was deleted with --force may go on, on a loaded machine."""

FORGOTTEN_OFTEN: Final = 20
"""A pod whose status forgot a claim as often does not start any more."""
FORGOTTEN_S: Final = 20.0
"""A pod that is deleted while its status forgets a claim may never end: the kubelet does not
unprepare its claims until the status names all of them. Kubernetes issue 139772."""

SILENCE: Final = "(silence)"
"""The reason of causes during which nobody can say anything, such as a node without power."""


class Stage(StrEnum):
    """What a pod waits for."""

    SCHEDULED = "to be scheduled"
    STARTED = "to run"
    RESTARTED = "to run again"
    ENDED = "to be gone"


@dataclass(frozen=True)
class Cause:
    """Something that keeps pods waiting, from its begin until the node was well again.

    Attributes:
        kind: For the report.
        node: The node; empty for all nodes.
        began: Monotonic seconds.
        over: The same.
        reasons: What may be told because of it.
    """

    kind: str
    node: str
    began: float
    over: float
    reasons: frozenset[str]


@dataclass(frozen=True)
class Wait:
    """A pod that waited; `ended` is the end of the week if it never got on."""

    pod: str
    node: str
    stage: Stage
    began: float
    ended: float
    told: tuple[Told, ...]

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True)
class Sight:
    """A line of a node's journal: what a pod saw from its inside.

    Attributes:
        node: The node.
        pod: The pod.
        word: `starts`, `sees` (UUIDs), `doubled`, `unlocked` (the lock itself failed) or `stop`.
        what: Minor numbers or UUIDs; with `doubled`, also the pod that has the GPU.
        at: Seconds since the machine was started.
    """

    node: str
    pod: str
    word: str
    what: tuple[str, ...]
    at: float = 0


@dataclass(frozen=True)
class Judgement:
    """A judged wait: the causes that explain it, or what is wrong with it."""

    wait: Wait
    reasons: tuple[str, ...]
    problem: str = ""


def waits(pods: Iterable[PodHistory], end: float) -> list[Wait]:
    """All waits of all pods, in the order of their stages."""
    return [wait for pod in pods for wait in _waits_of(pod, end)]


def _waits_of(pod: PodHistory, end: float) -> list[Wait]:
    stop = min(moment for moment in (pod.deleted, pod.gone, end) if moment is not None)
    spans = [(Stage.SCHEDULED, pod.created, min(stop, pod.scheduled or stop))]
    if pod.scheduled is not None:
        first = pod.runs[0].began if pod.runs else stop
        spans.append((Stage.STARTED, pod.scheduled, min(stop, first)))
    for run, following in zip_longest(pod.runs, pod.runs[1:]):
        if run.ended is not None and run.ended < stop:
            again = stop if following is None else following.began
            spans.append((Stage.RESTARTED, run.ended, min(stop, again)))
    if pod.deleted is not None:
        spans.append((Stage.ENDED, pod.deleted, end if pod.gone is None else pod.gone))
    return [
        Wait(
            pod.name,
            pod.node,
            stage,
            began,
            ended,
            tuple(each for each in pod.told if began - 1 <= each.at <= ended + 1),
        )
        for stage, began, ended in spans
        if ended > began
    ]


def judge(wait: Wait, causes: Sequence[Cause]) -> Judgement:
    """Whether a wait was explained by what was told, and ended when its cause was gone."""
    ours = [
        cause
        for cause in causes
        if cause.node in ("", wait.node)
        and cause.began <= wait.ended
        and cause.over + LATE_S >= wait.began
    ]
    why = sorted(
        {
            reason
            for told in wait.told
            for reason in told.reasons
            if _is_caused(reason, told.at, ours)
        }
    )
    gap = longest_gap(wait.began, wait.ended, [(cause.began, cause.over) for cause in ours])
    if gap > STUCK_S:
        return Judgement(wait, tuple(why), f"nothing kept it for {gap:.0f} s")
    if wait.seconds <= QUIET_S:
        return Judgement(wait, tuple(why))
    if not why and any(SILENCE in cause.reasons for cause in ours):
        return Judgement(wait, tuple({f"({c.kind})" for c in ours if SILENCE in c.reasons}))
    if not why:
        return Judgement(wait, (), "no Event names a cause that was there")
    return Judgement(wait, tuple(why))


def groundless(pod: PodHistory, causes: Sequence[Cause]) -> list[str]:
    """The driver's Warnings of a pod whose cause was not there, or was gone for long."""
    ours = [cause for cause in causes if cause.node in ("", pod.node)]
    return [
        f"{pod.name} on {pod.node}: {told.text}"
        for told in pod.told
        if (named := told.reasons - {UNSCHEDULABLE})  # that is the scheduler's own word
        and not any(_is_caused(each, told.at, ours) for each in named)
    ]


def _is_caused(reason: str, at: float, causes: Iterable[Cause]) -> bool:
    return any(
        reason in cause.reasons and cause.began - 1 <= at <= cause.over + LATE_S for cause in causes
    )


def longest_gap(began: float, ended: float, spans: Iterable[tuple[float, float]]) -> float:
    """The longest time between two moments that no span covers."""
    longest, covered = 0.0, began
    for first, last in sorted(spans):
        longest = max(longest, min(first, ended) - covered)
        covered = max(covered, last)
    return max(longest, ended - covered)


def busy(pod: PodHistory, gpus: int, history: History, end: float) -> list[Cause]:
    """The times at which no node had room for a pod that asks for so many whole GPUs.

    Pods that ask for none (0) need a node that is ready and offers any GPU.
    """
    stop = min(moment for moment in (pod.scheduled, pod.deleted, end) if moment is not None)
    claims = set(pod.claims.values())
    spans: list[list[float]] = []
    moment = pod.created
    while moment <= stop:
        has_room = any(_has_room(history, node, gpus, claims, moment) for node in history.offered)
        if not has_room:
            if spans and moment - spans[-1][1] <= 1.5:
                spans[-1][1] = moment
            else:
                spans.append([moment, moment])
        moment += 1.0
    return [
        Cause("no free GPU", "", first, last, frozenset({UNSCHEDULABLE})) for first, last in spans
    ]


def _has_room(history: History, node: str, gpus: int, claims: set[str], at: float) -> bool:
    if not at_moment(history.ready[node], at, False):
        return False
    offered = at_moment(history.offered[node], at, frozenset[str]())
    there = [
        each
        for found in history.allocations.values()
        for each in found
        if each.began <= at and (each.ended is None or each.ended > at)
    ]
    elsewhere = {each.node for each in there if each.claim in claims}
    if elsewhere:
        return node in elsewhere
    taken = {gpu_of(each.device) for each in there if each.node == node and not each.is_admin}
    return len(offered - taken) >= max(gpus, 1) if gpus else bool(offered)


def forgotten_claims(pod: PodHistory) -> list[Cause]:
    """The time in which Kubernetes took turns in naming the claims of a pod that has several.

    The kubelet then waits for the claim that is not named, for ever. Kubernetes issue 138407.
    """
    is_for_ever = len(pod.forgotten) >= FORGOTTEN_OFTEN or pod.was_named_again is not None
    if not pod.forgotten or not is_for_ever:
        return []
    last = max(
        each for each in (pod.forgotten[-1], pod.deleted, pod.was_named_again) if each is not None
    )
    return [
        Cause(
            "claims that Kubernetes forgets by turns",
            pod.node,
            pod.forgotten[0],
            last,
            frozenset({SILENCE}),
        )
    ]


def at_moment(steps: Sequence[tuple[float, T]], at: float, before: T) -> T:
    """The value of a step function."""
    found = before
    for since, value in steps:
        if since > at:
            break
        found = value
    return found


def doubled(sights: Iterable[Sight]) -> dict[Sight, str]:
    """Pods that could not lock a GPU because another pod had it, with what both have written."""
    seen, found = list(sights), dict[Sight, str]()
    for each in seen:
        if each.word == "doubled":
            gpu, holder = (*each.what, "another pod")[:2]
            said = f"{each.pod} on {each.node}: GPU {gpu} was that of {holder}, too"
            found[each] = f"{said}; {_journal(seen, each, holder)}"
    return found


def is_kubelets(sight: Sight, forced: Iterable[PodHistory], history: History) -> bool:
    """Whether a doubled GPU was let go by the kubelet while its former pod still ended.

    Once a minute the kubelet unprepares the claims of pods that it does not know as active. A pod
    that was deleted by force is not active, although its container takes seconds to end: a claim
    that is prepared meanwhile gets a GPU that is in use. Source: GetActivePods in the kubelet's
    kubelet_pods.go; kubernetes/kubernetes#104824 and #141471.

    That the driver itself never records two claims for one GPU is checked apart, on each node.

    Args:
        sight: A sight whose word is `doubled`.
        forced: The pods that were deleted by force.
        history: What the claims had.
    """
    device = f"gpu-{sight.what[0]}"
    return any(
        (was.node, gpu_of(was.device)) == (sight.node, device) and was.began <= other.deleted
        for other in forced
        if other.node == sight.node
        and other.deleted is not None
        and other.deleted <= sight.at <= other.deleted + FORCED_S
        for claim in other.claims.values()
        for was in history.allocations.get(claim, ())
    )


def _journal(sights: Iterable[Sight], doubled: Sight, holder: str) -> str:
    """What the two pods have written into the node's journal."""
    lines = [
        f"{each.at:.0f} s {each.pod} {each.word}"
        for each in sights
        if each.node == doubled.node and each.pod in (doubled.pod, holder)
    ]
    return ", ".join(lines)


def unproved(sights: Iterable[Sight]) -> list[str]:
    """Pods that prove nothing, because they could lock nothing."""
    return [
        f"{each.pod} on {each.node}: GPU {' '.join(each.what)} cannot be locked by anybody"
        for each in sights
        if each.word == "unlocked"
    ]


def kept_gpus(
    pod: PodHistory, forced: Iterable[PodHistory], history: History
) -> set[frozenset[str]]:
    """What a pod's claim had before, if the kubelet may have kept it for the pod.

    Kubernetes allocates a claim anew when no pod uses it. A pod that was deleted by force is gone
    for Kubernetes, but not at once for its kubelet, which gives the claim's next pod the devices
    that it has prepared before, and does not call the driver: it compares the claim's UID only.
    Nobody else gets these devices meanwhile, because the driver has not been told to unprepare
    them. Source: kubelet, pkg/kubelet/cm/dra/manager.go; kubernetes/kubernetes#141471.

    Args:
        pod: The pod.
        forced: The pods that were deleted by force.
        history: What the claims had.
    """
    claims = {*pod.claims.values()}
    return {
        frozenset({history.uuids[was.node, was.device]})
        for other in forced
        if other.node == pod.node and other.deleted is not None
        for claim in claims & {*other.claims.values()}
        for was in history.allocations.get(claim, ())
        if was.node == pod.node and was.ended is not None and was.began < other.deleted
    }


def wrong_gpus(
    sights: Iterable[Sight],
    wanted: Mapping[str, frozenset[str]],
    kept: Mapping[str, set[frozenset[str]]],
) -> list[str]:
    """Pods that saw other GPUs than those that their claims have.

    Args:
        sights: What the pods have seen.
        wanted: The UUIDs of the claims' devices by pod.
        kept: What their claims had before, by pod, if the kubelet may have kept it.
    """
    return [
        f"{each.pod} on {each.node} sees {sorted(each.what)}, not {sorted(wanted[each.pod])}"
        for each in sights
        if each.word == "sees"
        and each.pod in wanted
        and frozenset(each.what) not in {wanted[each.pod], *kept.get(each.pod, ())}
    ]
