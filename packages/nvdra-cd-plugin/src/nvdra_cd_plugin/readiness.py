"""What a domain's daemons tell of themselves → what this node's own lacks; nothing: its channel.

Peers hold nobody up; who is absent is information. Only where IMEX knows its peers by address must
there be as many as the domain says. Source: spec/compute-domain.md §7.7.1, §14.2 (KW-20).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.domains import ComputeDomain, ComputeDomainClique, Readiness
from nvdra_api.types.errors import DriverError, Reason, RetryableError
from nvdra_api.types.ids import NodeName, PodUID

from nvdra_cd_plugin.membership import Domain

_MOST_PEERS: Final = 3
"""Peers that a message names; the others are counted."""
_REMEDY: Final = (
    "the pod starts as soon as it is; if it stays, see the daemon's pod and kubectl describe "
    "computedomain"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is said of one node's daemon.

    Attributes:
        node: Its node.
        is_ready: It heard READY from its IMEX.
        pod: Which incarnation says so; None where that is not told.
        message: What it lacks, by its own words.
        ip: Of the pod that says so.
    """

    node: NodeName
    is_ready: bool
    pod: PodUID | None = None
    message: str = ""
    ip: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """The daemon whose claim is prepared on this node.

    Attributes:
        pods: That the claim is for.
        ips: Their addresses, as far as they are known.
    """

    pods: Sequence[PodUID]
    ips: Mapping[PodUID, str] = field(default_factory=dict)

    def said(self, entry: Entry) -> bool | None:
        """Whether the entry is its own, or a predecessor's; None while nobody can tell.

        The reference's daemons, and a domain's status, tell an entry's writer by the address alone.
        """
        if entry.pod is not None:
            return entry.pod in self.pods
        known = {self.ips[pod] for pod in self.pods if pod in self.ips}
        if entry.ip in known:
            return True
        return False if len(known) == len(self.pods) else None


@dataclass(frozen=True, slots=True)
class Found:
    """What the cluster tells of a daemon that says nothing itself.

    Attributes:
        pods: Of the domain's DaemonSet, those that are bound to no node among them.
        why_none: Why there is none for this node; empty where nobody knows.
    """

    pods: tuple[DaemonPod, ...]
    why_none: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The daemon's own claim has been refused on this node.

    Attributes:
        claim: Of the daemon.
        pods: That the claim is for.
        error: Why.
        is_over: It does not go on by itself: the kubelet has its answer.
    """

    claim: ClaimRef
    pods: Sequence[PodUID]
    error: DriverError
    is_over: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """How it is with the daemon of this node.

    Attributes:
        lacks: What it lacks; empty when the channel can be given.
        absent: Peers that are known and not ready, by name.
        is_seen: Whether it has said anything itself, so that nobody else need be asked.
        is_unproved: Its node's entry is Ready, and not known to be its own: the address of its pod
            would tell.
        is_refused: Its own claim is refused on this node, and so it cannot start.
        remedy: What to do about it; empty where that is not known.
    """

    lacks: str
    absent: tuple[NodeName, ...] = ()
    is_seen: bool = False
    is_unproved: bool = False
    is_refused: bool = False
    remedy: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether the channel can be given."""
        return not self.lacks


def of_clique(clique: ComputeDomainClique) -> tuple[Entry, ...]:
    """What the daemons of a clique say of themselves."""
    return tuple(
        Entry(
            each.node_name,
            _is_ready(each.status),
            each.pod_uid,
            each.message or "",
            each.ip_address,
        )
        for each in clique.daemons
    )


def of_status(domain: ComputeDomain) -> tuple[Entry, ...]:
    """What the domain's status says, where its members do not meet in cliques."""
    return tuple(
        Entry(each.name, _is_ready(each.status), ip=each.ip_address) for each in domain.status.nodes
    )


def assess(
    entries: Sequence[Entry], node: NodeName, daemon: Own | None, least: int = 0
) -> Standing:
    """How it is with this node's daemon.

    Args:
        entries: Of the domain's daemons in this node's clique, or of all its nodes.
        node: This node.
        daemon: That is prepared here; None while none is. An entry of another was written by a
            daemon that is gone.
        least: How many nodes must have joined.
    """
    own = next((entry for entry in entries if entry.node == node), None)
    absent = tuple(sorted(e.node for e in entries if e.node != node and not e.is_ready))
    said = None if own is None or daemon is None else daemon.said(own)
    lacks = next(_lacking(own, daemon, said, len(entries), least), "")
    is_unproved = own is not None and own.is_ready and own.pod is None and said is not True
    return Standing(lacks, absent, said is True, is_unproved and daemon is not None)


def explained(
    standing: Standing, found: Found | None, node: NodeName, refused: Refused | None = None
) -> Standing:
    """The same, with what is known otherwise of why the daemon says nothing itself.

    Args:
        standing: By its own word.
        found: By the cluster; None where it has not been asked, or does not answer.
        node: This node.
        refused: By this plugin, which has to prepare the daemon's claim.
    """
    if standing.is_ready or standing.is_seen:
        return standing
    if found is None:
        return standing if refused is None else _without(standing, refused, "")
    here = [pod for pod in found.pods if pod.node == node]
    if not here:
        text = found.why_none or "the domain's DaemonSet has made no pod for this node"
        return replace(standing, lacks=text)
    pod = max(here, key=lambda each: (not each.is_leaving, each.created))
    name = f"its pod {pod.namespace}/{pod.name}"
    if refused is not None and pod.uid in refused.pods and not pod.is_leaving:
        return _without(standing, refused, name)
    return replace(standing, lacks=f"{name} {_state(pod)}")


def refusal(domain: Domain, node: NodeName, standing: Standing) -> RetryableError:
    """Why a channel cannot be given yet."""
    return RetryableError(
        Reason.DAEMON_NOT_READY,
        f"the IMEX daemon of ComputeDomain {domain} on node {node} is not ready: "
        f"{standing.lacks}{_peers(standing.absent)}",
        standing.remedy or _REMEDY,
        domain=domain.uid,
    )


def _lacking(
    own: Entry | None, daemon: Own | None, said: bool | None, joined: int, least: int
) -> Iterator[str]:
    if daemon is None:
        yield "it has not been started here yet"
    elif own is None:
        yield "it has not joined the domain yet"
    elif said is False:
        yield "it has not joined the domain yet; what is known is of its predecessor"
    elif not own.is_ready:
        yield own.message or "it has not said READY yet"
    elif said is None:
        yield f"whether the entry of {own.ip or 'no address'} is its own cannot be told yet"
    elif joined < least:
        yield f"{joined} of the {least} nodes that the domain waits for have joined"


def _without(standing: Standing, refused: Refused, pod: str) -> Standing:
    """The daemon cannot start, because its claim is refused here."""
    error = refused.error
    what = f"{error.reason}: {error.message}"
    pods = f"{pod} cannot start: " if pod else ""
    text = f"{pods}its claim {refused.claim.namespace}/{refused.claim.name} is refused, {what}"
    return replace(standing, lacks=text, is_refused=True, remedy=error.remedy)


def _state(pod: DaemonPod) -> str:
    if pod.is_leaving:
        return "is being deleted and has not ended yet; the next one is made then"
    if pod.trouble:
        return f"does not run: {pod.trouble}"
    if pod.is_over:
        return "has ended"
    return "is starting"


def _peers(absent: Sequence[NodeName]) -> str:
    if not absent:
        return ""
    more = f" and {len(absent) - _MOST_PEERS} more" if len(absent) > _MOST_PEERS else ""
    named = ", ".join(absent[:_MOST_PEERS])
    return f" (not ready either, which holds nobody up: {named}{more})"


def _is_ready(status: str) -> bool:
    return status == Readiness.READY
