"""What a domain's daemons tell of themselves → what this node's own lacks; nothing: its channel.

Peers hold nobody up; who is absent is information. Only where IMEX knows its peers by address must
there be as many as the domain says. Source: spec/compute-domain.md §7.7.1, §14.2 (KW-20).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.types.domains import ComputeDomain, ComputeDomainClique, Readiness
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import NodeName, PodUID

from nvdra_cd_plugin.membership import Domain

_MOST_PEERS: Final = 3
"""Peers that a message names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is said of one node's daemon.

    Attributes:
        node: Its node.
        is_ready: It heard READY from its IMEX.
        pod: Which incarnation says so; None where that is not told.
        message: What it lacks, by its own words.
    """

    node: NodeName
    is_ready: bool
    pod: PodUID | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How it is with the daemon of this node.

    Attributes:
        lacks: What it lacks; empty when the channel can be given.
        absent: Peers that are known and not ready, by name.
        is_seen: Whether it has said anything itself, so that nobody else need be asked.
    """

    lacks: str
    absent: tuple[NodeName, ...] = ()
    is_seen: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether the channel can be given."""
        return not self.lacks


def of_clique(clique: ComputeDomainClique) -> tuple[Entry, ...]:
    """What the daemons of a clique say of themselves."""
    return tuple(
        Entry(each.node_name, _is_ready(each.status), each.pod_uid, each.message or "")
        for each in clique.daemons
    )


def of_status(domain: ComputeDomain) -> tuple[Entry, ...]:
    """What the domain's status says, where its members do not meet in cliques."""
    return tuple(Entry(each.name, _is_ready(each.status)) for each in domain.status.nodes)


def assess(
    entries: Sequence[Entry], node: NodeName, daemon: Sequence[PodUID] | None, least: int = 0
) -> Standing:
    """How it is with this node's daemon.

    Args:
        entries: Of the domain's daemons in this node's clique, or of all its nodes.
        node: This node.
        daemon: Pods of the daemon's claim that is prepared here; None while none is. An entry of
            another pod was written by a daemon that is gone.
        least: How many nodes must have joined.
    """
    own = next((entry for entry in entries if entry.node == node), None)
    absent = tuple(sorted(e.node for e in entries if e.node != node and not e.is_ready))
    lacks = next(_lacking(own, daemon, len(entries), least), "")
    is_seen = own is not None and daemon is not None and own.pod in (None, *daemon)
    return Standing(lacks, absent, is_seen)


def explained(standing: Standing, pods: Iterable[DaemonPod], node: NodeName) -> Standing:
    """The same, with what the daemon's pod tells of why the daemon says nothing itself."""
    here = [pod for pod in pods if pod.node == node and not pod.is_leaving]
    if standing.is_ready or standing.is_seen:
        return standing
    if not here:
        text = "the domain's DaemonSet has made no pod for this node"
    else:
        pod = max(here, key=lambda each: each.created)
        text = f"its pod {pod.namespace}/{pod.name} {_state(pod)}"
    return Standing(text, standing.absent)


def refusal(domain: Domain, node: NodeName, standing: Standing) -> RetryableError:
    """Why a channel cannot be given yet."""
    return RetryableError(
        Reason.DAEMON_NOT_READY,
        f"the IMEX daemon of ComputeDomain {domain} on node {node} is not ready: "
        f"{standing.lacks}{_peers(standing.absent)}",
        "the pod starts as soon as it is; if it stays, see the daemon's pod and kubectl describe "
        "computedomain",
        domain=domain.uid,
    )


def _lacking(
    own: Entry | None, daemon: Sequence[PodUID] | None, joined: int, least: int
) -> Iterator[str]:
    if daemon is None:
        yield "it has not been started here yet"
    elif own is None:
        yield "it has not joined the domain yet"
    elif own.pod is not None and own.pod not in daemon:
        yield "it has not joined the domain yet; what is known is of its predecessor"
    elif not own.is_ready:
        yield own.message or "it has not said READY yet"
    elif joined < least:
        yield f"{joined} of the {least} nodes that the domain waits for have joined"


def _state(pod: DaemonPod) -> str:
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
