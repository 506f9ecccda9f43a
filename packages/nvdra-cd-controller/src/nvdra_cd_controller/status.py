# SPDX-License-Identifier: Apache-2.0
"""The status of a domain, computed from its members and the state of its children.

`desired` is a pure function, and nothing else decides what a status says. The same inputs give the
same status, so that a status which is stored already is not written again.
Source: docs/reference/compute-domain.md, "Aggregate status", "Known weaknesses of the reference
driver".
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
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

_NEED_ACTION: Final = ((ConditionType.ACCEPTED, "False"), (ConditionType.DEGRADED, "True"))
"""Conditions on which a user or the administrator must act."""

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
    values = {
        ConditionType.ACCEPTED: _accepted(inputs.failure),
        ConditionType.CHILDREN_READY: _children_ready(inputs),
        ConditionType.READY: _ready(domain, inputs),
        ConditionType.DEGRADED: _degraded(inputs, now),
    }
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
        is_new = old is None or (old.status, old.reason) != (condition.status, condition.reason)
        if is_new and (condition.type, condition.status) in _NEED_ACTION:
            yield StatusEvent("Warning", condition.reason, condition.message)
    if is_formed(after) and not is_formed(before):
        ready = after.condition(ConditionType.READY)
        yield StatusEvent("Normal", ConditionReason.ALL_NODES_READY, ready.message if ready else "")


def _accepted(failure: DriverError | None) -> ConditionValue:
    if failure is not None and failure.reason in _NOT_ACCEPTED:
        return ConditionValue(False, failure.reason, failure.event_text)
    return ConditionValue(True, ConditionReason.ACCEPTED, "the domain is accepted")


def _obstacle(inputs: StatusInputs) -> ConditionValue | None:
    """Why the children are not as they should be; None if they are."""
    if inputs.waits_for:
        text = _truncate(f"waiting for {inputs.waits_for}")
        return ConditionValue(False, ConditionReason.DELETING, text)
    if inputs.failure is not None:
        return ConditionValue(False, inputs.failure.reason, inputs.failure.event_text)
    if not inputs.all_children_exist:
        text = "the children are being created"
        return ConditionValue(False, ConditionReason.CHILDREN_MISSING, text)
    return None


def _children_ready(inputs: StatusInputs) -> ConditionValue:
    daemons = "" if inputs.is_host_managed else "DaemonSet and both "
    text = f"the {daemons}claim template{'s exist' if daemons else ' exists'}"
    return _obstacle(inputs) or ConditionValue(True, ConditionReason.CHILDREN_READY, text)


def _ready(domain: ComputeDomain, inputs: StatusInputs) -> ConditionValue:
    members = inputs.members
    # A child that cannot be written, or is made again, takes nothing from the nodes that run.
    if inputs.waits_for or not members or not _accepted(inputs.failure).is_true:
        obstacle = _obstacle(inputs)
        if obstacle is not None:
            return obstacle
    if inputs.is_host_managed:
        text = "the hosts run IMEX; its state is not known"
        return ConditionValue(True, ConditionReason.HOST_MANAGED, text)
    not_ready = [member for member in members if not member.is_ready]
    expected = max(len(members), domain.spec.num_nodes)
    nodes = "node is" if expected == 1 else "nodes are"
    count = f"{len(members) - len(not_ready)} of {expected} {nodes} ready"
    if not_ready:
        text = _truncate(f"{count}; {_list_members(not_ready)}")
        return ConditionValue(False, ConditionReason.DAEMONS_NOT_READY, text)
    if len(members) < domain.spec.num_nodes:
        text = f"{count}; the other nodes do not have a workload of the domain yet"
        return ConditionValue(False, ConditionReason.NODES_MISSING, text)
    if not members:
        text = "no node has a workload of the domain yet"
        return ConditionValue(True, ConditionReason.NO_NODES_YET, text)
    return ConditionValue(True, ConditionReason.ALL_NODES_READY, count)


def _degraded(inputs: StatusInputs, now: datetime) -> ConditionValue:
    for reason, causes in _DEGRADATIONS.items():
        text = "; ".join(causes(inputs, now))
        if text:
            return ConditionValue(True, reason, _truncate(text))
    return ConditionValue(False, ConditionReason.AS_EXPECTED, "nothing is wrong")


def silence_due_in_s(members: Sequence[Member], now: datetime) -> float | None:
    """Seconds until a daemon's silence makes the domain Degraded; None if none is silent yet."""
    waits = (_silence_left_s(member, now) for member in members)
    return min((left_s for left_s in waits if 0 < left_s < math.inf), default=None)


def _silence_left_s(member: Member, now: datetime) -> float:
    """Seconds until a daemon has been silent too long; infinite if it has spoken."""
    try:
        since = datetime.fromisoformat(member.silent_since)
    except ValueError:
        return math.inf
    return SILENT_AFTER_S - (now - since.replace(tzinfo=since.tzinfo or UTC)).total_seconds()


def _failing_pods(inputs: StatusInputs, now: datetime) -> Iterator[str]:
    yield _list_members(
        member
        for member in inputs.members
        if member.pod_problem or _silence_left_s(member, now) <= 0
    )


def _full_cliques(inputs: StatusInputs, _: datetime) -> Iterator[str]:
    sizes = Counter(member.clique for member in inputs.members if member.clique != NO_CLIQUE)
    full = sorted(clique for clique, size in sizes.items() if size >= inputs.max_nodes)
    waiting = [member for member in inputs.members if not member.is_listed]
    if full and waiting:
        yield f"{', '.join(full)} has {inputs.max_nodes} daemons, which is the maximum"
        yield _list_members(waiting)


def _unread_cliques(inputs: StatusInputs, _: datetime) -> Iterator[str]:
    if inputs.has_unread_cliques:
        yield (
            "there are more objects computedomaincliques with the domain's UID than are read, and "
            "no pod of the domain names them: a daemon's token is used by another program; delete "
            "its pod, and then these objects"
        )


def _broken_links(inputs: StatusInputs, _: datetime) -> Iterator[str]:
    """Who cannot talk to whom, by the node that cannot be reached.

    Nodes that are not ready are told of elsewhere, and those that have left do not count.
    """
    ready = {member.node for member in inputs.members if member.is_ready}
    sources: dict[tuple[NodeName, str], list[NodeName]] = defaultdict(list)
    for member in inputs.members:
        for node, word in member.links.broken.items():
            if node in ready:
                sources[node, word].append(member.node)
    for (node, word), nodes in sorted(sources.items()):
        yield f"{_list_nodes(nodes)} cannot talk to {node} ({word})"
    for member in inputs.members:
        if member.links.others:
            yield f"{member.node} cannot talk to {member.links.others} more nodes"
        if member.links.failure:
            yield f"the connections of {member.node} are not known: {member.links.failure}"


def _moved_nodes(inputs: StatusInputs, _: datetime) -> Iterator[str]:
    moved = [member for member in inputs.members if member.moved_to is not None]
    elsewhere = [member for member in moved if member.moved_to]
    nowhere = [member for member in moved if not member.moved_to]
    remedies = {
        "delete the daemon's pod, and then the workload's pods on the node; the next ones join the "
        "clique of the node": elsewhere,
        "see the Events of the Node, and `nvidia-smi -q` on it, section Fabric; if they do not "
        "join the fabric again, drain the node and reboot it": nowhere,
    }
    for remedy, members in remedies.items():
        if members:
            yield f"{_list_texts(map(_describe_move, members))}: {remedy}"


def _describe_move(member: Member) -> str:
    clique = f"the clique {member.moved_to}" if member.moved_to else "no NVLink clique"
    return (
        f"the GPUs of {member.node} are in {clique} now, and its daemon has joined {member.clique}"
    )


def _misdirected_links(inputs: StatusInputs, _: datetime) -> Iterator[str]:
    for member in inputs.members:
        if member.links.strangers:
            yield (
                f"the nvidia-imex of {member.node} is connected to a host that is no member of the "
                f"domain, as {_list_nodes(sorted(member.links.strangers))}: it is signalled to end "
                "the connection; if this stays, delete the daemon's pod"
            )


def _index_conflicts(inputs: StatusInputs, _: datetime) -> Iterator[str]:
    members = [member for member in inputs.members if member.clique != NO_CLIQUE]
    used = Counter((member.clique, member.index) for member in members)
    for member in sorted(members, key=lambda member: member.node):
        if not 0 <= member.index < inputs.max_nodes:
            yield f"{member.node} has index {member.index}, the maximum is {inputs.max_nodes - 1}"
        elif used[member.clique, member.index] > 1:
            yield f"{member.node} shares index {member.index} of clique {member.clique}"


_DEGRADATIONS: Final[Mapping[str, Callable[[StatusInputs, datetime], Iterator[str]]]] = {
    ConditionReason.DAEMON_PODS_FAILING: _failing_pods,
    ConditionReason.INDEX_CONFLICT: _index_conflicts,
    ConditionReason.CLIQUE_CHANGED: _moved_nodes,
    ConditionReason.IMEX_LINKS_MISDIRECTED: _misdirected_links,
    ConditionReason.IMEX_LINKS_BROKEN: _broken_links,
    ConditionReason.CLIQUE_FULL: _full_cliques,
    ConditionReason.TOO_MANY_CLIQUES: _unread_cliques,
}
"""What may be wrong with a domain, and the texts that say it: the first that has any is said."""


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


def _list_members(members: Iterable[Member]) -> str:
    return _list_texts(
        f"{member.node}: {member.pod_problem or member.not_ready_because}" for member in members
    )


def _list_texts(texts: Iterable[str], last: str = "; and", separator: str = "; ") -> str:
    """The first texts, and how many there are besides."""
    first, rest = (found := list(texts))[:_MAX_NAMED_MEMBERS], found[_MAX_NAMED_MEMBERS:]
    return separator.join(first) + (f"{last} {len(rest)} more" if rest else "")


def _list_nodes(nodes: Iterable[str]) -> str:
    return _list_texts(nodes, " and", ", ")


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[: _MAX_MESSAGE_LENGTH - 1]}…"
