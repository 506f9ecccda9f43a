# SPDX-License-Identifier: Apache-2.0
"""The status of a domain, computed from its members and the state of its children.

`desired` is a pure function, and nothing else decides what a status says. The same inputs give the
same status, so that a status which is stored already is not written again.
Source: docs/reference/compute-domain.md, "Aggregate status", "Known weaknesses of the reference
driver".
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import CliqueID, NodeName
from nvdra_api.meta import Condition, JsonObject
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import (
    NO_CLIQUE,
    ComputeDomainStatus,
    ConditionType,
    Readiness,
)

from nvdra_cd_controller.members import Member

MAX_LISTED_NODES: Final = 2048
"""Maximum length of `status.nodes` in the CRD. The counters count all nodes."""

SILENT_AFTER_S: Final = 60.0
"""A daemon that runs so long and has said nothing will hardly do so by itself. Most join within a
second, and one that must wait for its turn without a controller within a few more than 15."""

_NOT_ACCEPTED: Final = (Reason.NAME_TAKEN, Reason.INVALID_CONFIG)
"""Failures for which a user must change an object; all others are failures of a call."""

_MAX_NAMED_MEMBERS = 5
_MAX_MESSAGE_LENGTH = 4096


class ConditionReason(StrEnum):
    """Reasons of conditions that do not come from a failed call; those are a `Reason`."""

    ACCEPTED = "Accepted"
    CHILDREN_READY = "ChildrenReady"
    CHILDREN_MISSING = "ChildrenMissing"
    """The children have not been created yet, or not created again."""
    NO_NODES_YET = "NoNodesYet"
    """Ready, and no node has a workload of the domain."""
    ALL_NODES_READY = "AllNodesReady"
    HOST_MANAGED = "HostManaged"
    """Ready as far as the controller can know, because the hosts run IMEX."""
    NODES_MISSING = "NodesMissing"
    """There are fewer members than `numNodes`."""
    DAEMONS_NOT_READY = "DaemonsNotReady"
    DELETING = "Deleting"
    AS_EXPECTED = "AsExpected"
    DAEMON_PODS_FAILING = "DaemonPodsFailing"
    """Pods of daemons cannot be scheduled or started, or do not stay up."""
    CLIQUE_FULL = "CliqueFull"
    """A clique has more nodes than IMEX is configured for."""
    INDEX_CONFLICT = "IndexConflict"
    """Two daemons have the same index, or one has an index that is too high."""
    IMEX_LINKS_BROKEN = "ImexLinksBroken"
    """Nodes are ready, and their IMEX is not connected: CUDA cannot share memory between them."""
    CLIQUE_CHANGED = "CliqueChanged"
    """The GPUs of a node are in another clique than its daemon has joined."""
    IMEX_LINKS_MISDIRECTED = "ImexLinksMisdirected"
    """IMEX of a node is connected to a host that is no member of the domain."""
    TOO_MANY_CLIQUES = "TooManyCliques"
    """The domain has more objects ComputeDomainClique than are read; no daemon has made them."""


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """What a status is computed from, besides the domain itself.

    Attributes:
        members: The members, from `members.current`.
        failure: Why the domain is not accepted, or its children could not be created.
        all_children_exist: Whether both claim templates and the DaemonSet exist as desired.
        waits_for: What the deletion of the domain waits for; empty if it is not being deleted.
        is_host_managed: Whether the hosts run IMEX, so that the domain has no daemons.
        max_nodes: Maximum number of nodes in one clique.
        has_unread_cliques: Whether there are more objects ComputeDomainClique than are read.
    """

    members: tuple[Member, ...] = ()
    failure: DriverError | None = None
    all_children_exist: bool = True
    waits_for: str = ""
    is_host_managed: bool = False
    max_nodes: int = 18
    has_unread_cliques: bool = False


class ConditionValue(NamedTuple):
    """What a condition says, without the time of its last transition."""

    is_true: bool
    reason: str
    message: str


class StatusEvent(NamedTuple):
    """An Event to emit about a domain."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def desired(domain: ComputeDomain, inputs: StatusInputs, now: datetime) -> JsonObject:
    """The whole `status` as JSON.

    Args:
        domain: The domain with its stored status, from which unchanged conditions take their time.
        inputs: What is known about the domain.
        now: The time of conditions that change.
    """
    members = inputs.members
    values = _condition_values(domain, inputs, now)
    is_ready = values[ConditionType.READY].is_true
    listed = [member for member in _in_stored_order(domain, members) if member.is_listed]
    nodes = [_node(member) for member in listed][:MAX_LISTED_NODES]
    return {
        "status": (Readiness.READY if is_ready else Readiness.NOT_READY).value,
        "readyNodes": sum(member.is_ready for member in members),
        "expectedNodes": max(len(members), 0 if inputs.is_host_managed else domain.spec.num_nodes),
        "cliques": len({member.clique for member in members} - {NO_CLIQUE}),
        # Absent if empty, as with the reference driver: its users test whether the field exists.
        **({"nodes": nodes} if nodes else {}),
        "conditions": [_condition(domain, kind, value, now) for kind, value in values.items()],
    }


def is_formed(status: ComputeDomainStatus) -> bool:
    """Whether the domain is Ready with at least one node. A domain without nodes is Ready too."""
    return status.status == Readiness.READY and status.ready_nodes > 0


def events(before: ComputeDomainStatus, after: ComputeDomainStatus) -> Iterator[StatusEvent]:
    """The Events to emit when a status changes."""
    for condition in after.conditions:
        old = before.condition(ConditionType(condition.type))
        old_value = old and (old.status, old.reason, old.message)
        if old_value == (condition.status, condition.reason, condition.message):
            continue
        is_new = old is None or (old.status, old.reason) != (condition.status, condition.reason)
        if is_new and _needs_action(condition):
            yield StatusEvent("Warning", condition.reason, condition.message)
    if is_formed(after) and not is_formed(before):
        ready = after.condition(ConditionType.READY)
        yield StatusEvent("Normal", ConditionReason.ALL_NODES_READY, ready.message if ready else "")


def _needs_action(condition: Condition) -> bool:
    """Whether somebody must act on the condition."""
    if condition.type == ConditionType.ACCEPTED:
        return condition.status == "False"
    return condition.type == ConditionType.DEGRADED and condition.status == "True"


def _condition_values(
    domain: ComputeDomain, inputs: StatusInputs, now: datetime
) -> dict[ConditionType, ConditionValue]:
    return {
        ConditionType.ACCEPTED: _accepted(inputs.failure),
        ConditionType.CHILDREN_READY: _children_ready(inputs),
        ConditionType.READY: _ready(domain, inputs),
        ConditionType.DEGRADED: _degraded(inputs, now),
    }


def _accepted(failure: DriverError | None) -> ConditionValue:
    if failure is not None and failure.reason in _NOT_ACCEPTED:
        return ConditionValue(False, failure.reason, failure.event_text)
    return ConditionValue(True, ConditionReason.ACCEPTED, "the domain is accepted")


def _children_ready(inputs: StatusInputs) -> ConditionValue:
    if inputs.waits_for:
        return _deleting(inputs)
    if inputs.failure is not None:
        return ConditionValue(False, inputs.failure.reason, inputs.failure.event_text)
    if not inputs.all_children_exist:
        return ConditionValue(
            False, ConditionReason.CHILDREN_MISSING, "the children are being created"
        )
    what = (
        "claim template exists"
        if inputs.is_host_managed
        else "DaemonSet and both claim templates exist"
    )
    return ConditionValue(True, ConditionReason.CHILDREN_READY, f"the {what}")


def _deleting(inputs: StatusInputs) -> ConditionValue:
    text = _truncate(f"waiting for {inputs.waits_for}")
    return ConditionValue(False, ConditionReason.DELETING, text)


def _ready(domain: ComputeDomain, inputs: StatusInputs) -> ConditionValue:
    members = inputs.members
    if inputs.waits_for:
        return _deleting(inputs)
    is_accepted = inputs.failure is None or inputs.failure.reason not in _NOT_ACCEPTED
    # A child that cannot be written, or is made again, takes nothing from the nodes that run.
    if not members or not is_accepted:
        if inputs.failure is not None:
            return ConditionValue(False, inputs.failure.reason, inputs.failure.event_text)
        if not inputs.all_children_exist:
            return ConditionValue(
                False, ConditionReason.CHILDREN_MISSING, "the children are being created"
            )
    if inputs.is_host_managed:
        return ConditionValue(
            True, ConditionReason.HOST_MANAGED, "the hosts run IMEX; its state is not known"
        )
    not_ready = [member for member in members if not member.is_ready]
    expected = max(len(members), domain.spec.num_nodes)
    count = f"{len(members) - len(not_ready)} of {expected} {_plural(expected, 'node')} ready"
    if not_ready:
        return ConditionValue(
            False,
            ConditionReason.DAEMONS_NOT_READY,
            _truncate(f"{count}; {_list_members(not_ready)}"),
        )
    if len(members) < domain.spec.num_nodes:
        text = f"{count}; the other nodes do not have a workload of the domain yet"
        return ConditionValue(False, ConditionReason.NODES_MISSING, text)
    if not members:
        return ConditionValue(
            True, ConditionReason.NO_NODES_YET, "no node has a workload of the domain yet"
        )
    return ConditionValue(True, ConditionReason.ALL_NODES_READY, count)


def _degraded(inputs: StatusInputs, now: datetime) -> ConditionValue:
    failing = [member for member in inputs.members if member.pod_problem or _is_silent(member, now)]
    if failing:
        return ConditionValue(
            True, ConditionReason.DAEMON_PODS_FAILING, _truncate(_list_members(failing))
        )
    conflicts = sorted(_index_conflicts(inputs))
    if conflicts:
        return ConditionValue(True, ConditionReason.INDEX_CONFLICT, _truncate("; ".join(conflicts)))
    moved = [member for member in inputs.members if member.moved_to is not None]
    if moved:
        return ConditionValue(True, ConditionReason.CLIQUE_CHANGED, _truncate(_list_moved(moved)))
    misdirected = list(_misdirected_links(inputs.members))
    if misdirected:
        return ConditionValue(
            True, ConditionReason.IMEX_LINKS_MISDIRECTED, _truncate("; ".join(misdirected))
        )
    broken = list(_broken_links(inputs.members))
    if broken:
        return ConditionValue(True, ConditionReason.IMEX_LINKS_BROKEN, _truncate("; ".join(broken)))
    full = sorted(_full_cliques(inputs))
    waiting = [member for member in inputs.members if not member.is_listed]
    if full and waiting:
        text = (
            f"{', '.join(full)} has {inputs.max_nodes} daemons, which is the maximum; "
            f"{_list_members(waiting)}"
        )
        return ConditionValue(True, ConditionReason.CLIQUE_FULL, _truncate(text))
    if inputs.has_unread_cliques:
        text = (
            "there are more objects computedomaincliques with the domain's UID than are read, and "
            "no pod of the domain names them: a daemon's token is used by another program; delete "
            "its pod, and then these objects"
        )
        return ConditionValue(True, ConditionReason.TOO_MANY_CLIQUES, text)
    return ConditionValue(False, ConditionReason.AS_EXPECTED, "nothing is wrong")


def silence_due_in_s(members: Sequence[Member], now: datetime) -> float | None:
    """Seconds until a daemon's silence makes the domain Degraded; None if none is silent yet."""
    waits = (_silence_left_s(member, now) for member in members)
    return min((left_s for left_s in waits if left_s is not None and left_s > 0), default=None)


def _is_silent(member: Member, now: datetime) -> bool:
    left_s = _silence_left_s(member, now)
    return left_s is not None and left_s <= 0


def _silence_left_s(member: Member, now: datetime) -> float | None:
    try:
        since = datetime.fromisoformat(member.silent_since)
    except ValueError:
        return None
    return SILENT_AFTER_S - (now - since.replace(tzinfo=since.tzinfo or UTC)).total_seconds()


def _full_cliques(inputs: StatusInputs) -> Iterator[CliqueID]:
    sizes = Counter(member.clique for member in inputs.members if member.clique != NO_CLIQUE)
    yield from (clique for clique, size in sizes.items() if size >= inputs.max_nodes)


def _broken_links(members: Sequence[Member]) -> Iterator[str]:
    """Who cannot talk to whom, by the node that cannot be reached.

    Nodes that are not ready are told of elsewhere, and those that have left are nobody's concern.
    """
    ready = {member.node for member in members if member.is_ready}
    sources: dict[tuple[NodeName, str], list[NodeName]] = defaultdict(list)
    for member in members:
        for node, word in member.links.broken.items():
            if node in ready:
                sources[node, word].append(member.node)
    for (node, word), nodes in sorted(sources.items()):
        yield f"{_list_some(nodes)} cannot talk to {node} ({word})"
    for member in members:
        if member.links.others:
            yield f"{member.node} cannot talk to {member.links.others} more nodes"
        if member.links.failure:
            yield f"the connections of {member.node} are not known: {member.links.failure}"


def _list_moved(moved: Sequence[Member]) -> str:
    elsewhere = [member for member in moved if member.moved_to]
    nowhere = [member for member in moved if not member.moved_to]
    remedies = {
        "delete the daemon's pod, and then the workload's pods on the node; the next ones join the "
        "clique of the node": elsewhere,
        "see the Events of the Node, and `nvidia-smi -q` on it, section Fabric; if they do not "
        "join the fabric again, drain the node and reboot it": nowhere,
    }
    return "; ".join(
        f"{_list_left(members)}: {remedy}" for remedy, members in remedies.items() if members
    )


def _list_left(members: Sequence[Member]) -> str:
    return _list_texts(
        [
            f"the GPUs of {member.node} are in "
            f"{f'the clique {member.moved_to}' if member.moved_to else 'no NVLink clique'} now, "
            f"and its daemon has joined {member.clique}"
            for member in members
        ]
    )


def _misdirected_links(members: Sequence[Member]) -> Iterator[str]:
    for member in members:
        if member.links.strangers:
            yield (
                f"the nvidia-imex of {member.node} is connected to a host that is no member of the "
                f"domain, as {_list_some(sorted(member.links.strangers))}: it is signalled to end "
                "the connection; if this stays, delete the daemon's pod"
            )


def _list_some(nodes: Sequence[str]) -> str:
    first, rest = nodes[:_MAX_NAMED_MEMBERS], len(nodes[_MAX_NAMED_MEMBERS:])
    return ", ".join(first) + (f" and {rest} more" if rest else "")


def _index_conflicts(inputs: StatusInputs) -> Iterator[str]:
    members = [member for member in inputs.members if member.clique != NO_CLIQUE]
    used = Counter((member.clique, member.index) for member in members)
    for member in members:
        if not 0 <= member.index < inputs.max_nodes:
            yield f"{member.node} has index {member.index}, the maximum is {inputs.max_nodes - 1}"
        elif used[member.clique, member.index] > 1:
            yield f"{member.node} shares index {member.index} of clique {member.clique}"


def _condition(
    domain: ComputeDomain, kind: ConditionType, value: ConditionValue, now: datetime
) -> JsonObject:
    status = "True" if value.is_true else "False"
    stored = domain.status.condition(kind)
    since = stored.last_transition_time if stored and stored.status == status else None
    return {
        "type": kind.value,
        "status": status,
        "reason": str(value.reason),
        "message": value.message,
        "lastTransitionTime": (since or now).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": domain.metadata.generation,
    }


def _in_stored_order(domain: ComputeDomain, members: Sequence[Member]) -> Sequence[Member]:
    """The members in the order of their nodes; those that daemons wrote stay where they are.

    Where IMEX knows its peers by address, daemons list them in the order of the status, and another
    order restarts every IMEX of the domain.
    """
    if not any(member.written_status for member in members):
        return members
    places = {node.name: place for place, node in enumerate(domain.status.nodes)}
    return sorted(members, key=lambda member: (places.get(member.node, len(places)), member.node))


def _node(member: Member) -> JsonObject:
    return {
        "name": member.node,
        "ipAddress": member.ip,
        "cliqueID": member.clique,
        "index": member.index,
        # A daemon writes its own entry again if it is not what it wrote: then both would write.
        "status": member.written_status
        or (Readiness.READY if member.is_ready else Readiness.NOT_READY).value,
    }


def _list_members(members: Sequence[Member]) -> str:
    return _list_texts(
        [f"{member.node}: {member.pod_problem or member.not_ready_because}" for member in members]
    )


def _list_texts(texts: Sequence[str]) -> str:
    first, rest = texts[:_MAX_NAMED_MEMBERS], len(texts[_MAX_NAMED_MEMBERS:])
    return "; ".join([*first, *([f"and {rest} more"] if rest else [])])


def _plural(count: int, noun: str) -> str:
    return f"{noun} is" if count == 1 else f"{noun}s are"


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[: _MAX_MESSAGE_LENGTH - 1]}…"
