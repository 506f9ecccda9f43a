"""Members and the state of the children → a domain's status, as it should be stored.

One pure function; nothing else writes a status. The same facts give the same status, and a status
that says what is stored already is not written again. Source: spec/compute-domain.md §6.8.2, §14.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types.domains import (
    NO_CLIQUE,
    ComputeDomain,
    ComputeDomainStatus,
    Condition,
    ConditionType,
    Readiness,
)
from nvdra_api.types.errors import DriverError, Reason
from nvdra_api.types.ids import CliqueID

from nvdra_cd_controller.members import Member

MOST_LISTED: Final = 2048
"""What the definition allows in `status.nodes`; the counters go on."""

_REFUSALS: Final = (Reason.NAME_TAKEN, Reason.INVALID_CONFIG)
"""What a user must change something for; any other failure is a call's."""

_MOST_NAMED = 5
_LONGEST_MESSAGE = 4096


class Because(StrEnum):
    """Reasons of conditions that are no failure of a call; those are a `Reason`."""

    ACCEPTED = "Accepted"
    CHILDREN_READY = "ChildrenReady"
    CHILDREN_MISSING = "ChildrenMissing"
    """Not made, or not made again, yet."""
    NO_NODES_YET = "NoNodesYet"
    """Ready, and no workload has come to a node."""
    ALL_NODES_READY = "AllNodesReady"
    HOST_MANAGED = "HostManaged"
    """Ready as far as we know: the host runs IMEX."""
    NODES_MISSING = "NodesMissing"
    """Fewer members than `numNodes`."""
    DAEMONS_NOT_READY = "DaemonsNotReady"
    DELETING = "Deleting"
    AS_EXPECTED = "AsExpected"
    DAEMON_PODS_FAILING = "DaemonPodsFailing"
    """Pods cannot be scheduled or started, or do not stay up."""
    CLIQUE_FULL = "CliqueFull"
    """More nodes of one clique than IMEX is configured for."""
    INDEX_CONFLICT = "IndexConflict"
    """Two daemons at one place, or one beyond the last."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a status is made of, beside the domain itself.

    Attributes:
        members: Of `members.of`.
        failure: What keeps the domain from being served or its children from being made.
        are_children_there: Both templates and the DaemonSet are as they should be.
        waits_for: While the domain is being deleted: what that waits for.
        is_host_managed: There are no daemons of ours.
        max_nodes: Most nodes of one clique.
    """

    members: tuple[Member, ...] = ()
    failure: DriverError | None = None
    are_children_there: bool = True
    waits_for: str = ""
    is_host_managed: bool = False
    max_nodes: int = 18


class Verdict(NamedTuple):
    """What a condition says, before anybody knows since when."""

    is_so: bool
    reason: str
    message: str


class News(NamedTuple):
    """Something worth an Event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def wanted(domain: ComputeDomain, facts: Facts, now: datetime) -> JsonObject:
    """The whole `status`, as JSON.

    Args:
        domain: With the status that is stored: unchanged conditions keep their time.
        facts: What is known.
        now: For conditions that change.
    """
    members = facts.members
    verdicts = _verdicts(domain, facts)
    is_ready = verdicts[ConditionType.READY].is_so
    nodes = [_node(member) for member in members if member.is_listed][:MOST_LISTED]
    return {
        "status": (Readiness.READY if is_ready else Readiness.NOT_READY).value,
        "readyNodes": sum(member.is_ready for member in members),
        "expectedNodes": max(len(members), 0 if facts.is_host_managed else domain.spec.num_nodes),
        "cliques": len({member.clique for member in members} - {NO_CLIQUE}),
        # As the reference: who looks for the field means "is anybody there?"
        **({"nodes": nodes} if nodes else {}),
        "conditions": [
            _condition(domain, kind, verdict, now) for kind, verdict in verdicts.items()
        ],
    }


def is_formed(status: ComputeDomainStatus) -> bool:
    """Is it Ready with at least one node? An empty domain is Ready, and nothing has formed."""
    return status.status == Readiness.READY and status.ready_nodes > 0


def news(before: ComputeDomainStatus, after: ComputeDomainStatus) -> Iterator[News]:
    """What people should hear of when the one status follows the other."""
    for condition in after.conditions:
        old = before.condition(ConditionType(condition.type))
        said = old and (old.status, old.reason, old.message)
        if said == (condition.status, condition.reason, condition.message):
            continue
        is_new = old is None or (old.status, old.reason) != (condition.status, condition.reason)
        if is_new and _is_trouble(condition):
            yield News("Warning", condition.reason, condition.message)
    if is_formed(after) and not is_formed(before):
        ready = after.condition(ConditionType.READY)
        yield News("Normal", Because.ALL_NODES_READY, ready.message if ready else "")


def _is_trouble(condition: Condition) -> bool:
    """Is it something that somebody must do something about?"""
    if condition.type == ConditionType.ACCEPTED:
        return condition.status == "False"
    return condition.type == ConditionType.DEGRADED and condition.status == "True"


def _verdicts(domain: ComputeDomain, facts: Facts) -> dict[ConditionType, Verdict]:
    return {
        ConditionType.ACCEPTED: _accepted(facts.failure),
        ConditionType.CHILDREN_READY: _children(facts),
        ConditionType.READY: _ready(domain, facts),
        ConditionType.DEGRADED: _degraded(facts),
    }


def _accepted(failure: DriverError | None) -> Verdict:
    if failure is not None and failure.reason in _REFUSALS:
        return Verdict(False, failure.reason, failure.advice)
    return Verdict(True, Because.ACCEPTED, "nothing speaks against the domain")


def _children(facts: Facts) -> Verdict:
    if facts.waits_for:
        return Verdict(False, Because.DELETING, f"waiting for {facts.waits_for}")
    if facts.failure is not None:
        return Verdict(False, facts.failure.reason, facts.failure.advice)
    if not facts.are_children_there:
        return Verdict(False, Because.CHILDREN_MISSING, "they are being made")
    what = "claim template" if facts.is_host_managed else "DaemonSet and both claim templates"
    return Verdict(True, Because.CHILDREN_READY, f"the {what} are there")


def _ready(domain: ComputeDomain, facts: Facts) -> Verdict:
    members = facts.members
    if facts.waits_for:
        return Verdict(False, Because.DELETING, f"waiting for {facts.waits_for}")
    if facts.failure is not None:
        return Verdict(False, facts.failure.reason, facts.failure.advice)
    if not facts.are_children_there:
        return Verdict(False, Because.CHILDREN_MISSING, "DaemonSet and templates are being made")
    if facts.is_host_managed:
        return Verdict(True, Because.HOST_MANAGED, "the hosts run IMEX; nothing is known of them")
    lacking = [member for member in members if not member.is_ready]
    expected = max(len(members), domain.spec.num_nodes)
    count = f"{len(members) - len(lacking)} of {expected} {_plural(expected, 'node')} ready"
    if lacking:
        return Verdict(False, Because.DAEMONS_NOT_READY, _fitting(f"{count}; {_named(lacking)}"))
    if len(members) < domain.spec.num_nodes:
        text = f"{count}; the others are still without a workload of the domain"
        return Verdict(False, Because.NODES_MISSING, text)
    if not members:
        return Verdict(True, Because.NO_NODES_YET, "no workload has come to a node yet")
    return Verdict(True, Because.ALL_NODES_READY, count)


def _degraded(facts: Facts) -> Verdict:
    failing = [member for member in facts.members if member.trouble]
    if failing:
        return Verdict(True, Because.DAEMON_PODS_FAILING, _fitting(_named(failing)))
    wrong = sorted(_wrong_places(facts))
    if wrong:
        return Verdict(True, Because.INDEX_CONFLICT, _fitting("; ".join(wrong)))
    full = sorted(_full_cliques(facts))
    waiting = [member for member in facts.members if not member.is_listed]
    if full and waiting:
        text = (
            f"{', '.join(full)} has {facts.max_nodes} daemons, as many as there may be; "
            f"{_named(waiting)}"
        )
        return Verdict(True, Because.CLIQUE_FULL, _fitting(text))
    return Verdict(False, Because.AS_EXPECTED, "nothing is wrong")


def _full_cliques(facts: Facts) -> Iterator[CliqueID]:
    sizes = Counter(member.clique for member in facts.members if member.clique != NO_CLIQUE)
    yield from (clique for clique, size in sizes.items() if size >= facts.max_nodes)


def _wrong_places(facts: Facts) -> Iterator[str]:
    fabric = [member for member in facts.members if member.clique != NO_CLIQUE]
    taken = Counter((member.clique, member.index) for member in fabric)
    for member in fabric:
        if not 0 <= member.index < facts.max_nodes:
            yield f"{member.node} has index {member.index}, the last is {facts.max_nodes - 1}"
        elif taken[member.clique, member.index] > 1:
            yield f"{member.node} has index {member.index} of clique {member.clique} with others"


def _condition(
    domain: ComputeDomain, kind: ConditionType, verdict: Verdict, now: datetime
) -> JsonObject:
    said = "True" if verdict.is_so else "False"
    stored = domain.status.condition(kind)
    since = stored.last_transition_time if stored and stored.status == said else None
    return {
        "type": kind.value,
        "status": said,
        "reason": str(verdict.reason),
        "message": verdict.message,
        "lastTransitionTime": (since or now).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": domain.metadata.generation,
    }


def _node(member: Member) -> JsonObject:
    return {
        "name": member.node,
        "ipAddress": member.ip,
        "cliqueID": member.clique,
        "index": member.index,
        "status": (Readiness.READY if member.is_ready else Readiness.NOT_READY).value,
    }


def _named(members: Sequence[Member]) -> str:
    first = [f"{member.node}: {member.trouble or member.lacks}" for member in members[:_MOST_NAMED]]
    rest = len(members) - len(first)
    return "; ".join([*first, *([f"and {rest} more"] if rest else [])])


def _plural(count: int, noun: str) -> str:
    return f"{noun} is" if count == 1 else f"{noun}s are"


def _fitting(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"
