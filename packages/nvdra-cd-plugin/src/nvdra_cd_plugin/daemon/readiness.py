# SPDX-License-Identifier: Apache-2.0
"""Decides whether this node's daemon is ready, by what the domain's daemons write about themselves.

Other nodes do not delay a channel; the message only names those that are not ready. There is one
exception: where IMEX knows its peers by address, as many nodes must have joined as the domain says.

Decides, too, what a wait does next. The daemon's pod and its DaemonSet are read to explain a wait:
when the user is notified, and just before it ends. Without need nothing is asked.

Source: docs/reference/compute-domain.md, "Channel claim", "Races and correctness" (KW-20).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, Self

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_api.v1beta1.compute_domain import Readiness
from nvdra_runtime.computedomain.daemon_pods import DaemonPod

from nvdra_cd_plugin.domains.domain import Domain

_MAX_PEERS: Final = 3
"""How many peers a message names; the others are counted."""
_REMEDY: Final = (
    "the pod starts as soon as the daemon is ready; if that takes long, see the daemon's pod and "
    "kubectl describe computedomain"
)
NOTIFY_AFTER_S: Final = 15.0
"""How long a wait may last before the user is notified; most domains have formed by then."""
_LOOKUP_BEFORE_END_S: Final = 1.0
"""How long before the end of a wait the daemon's pod is read."""
_ADDRESS_INTERVAL_S: Final = 1.0
"""Between two reads of a pod whose address is missing. Its daemon is ready, so it comes soon."""
_LIVENESS_INTERVAL_S: Final = 0.25
"""Between two checks whether a daemon whose entry is Ready lives again: nothing reports a lock."""


@dataclass(frozen=True, slots=True)
class DaemonEntry:
    """What a clique or a domain's status says about one node's daemon.

    Attributes:
        node: The daemon's node.
        is_ready: Its IMEX answered READY.
        pod: The pod that wrote the entry; None if the entry does not name it.
        message: What the daemon lacks, in its own words.
        ip: The address of the pod that wrote the entry.
    """

    node: NodeName
    is_ready: bool
    pod: PodUID | None = None
    message: str = ""
    ip: str = ""


@dataclass(frozen=True, slots=True)
class OwnDaemon:
    """The daemon whose claim is prepared on this node.

    Attributes:
        pods: The pods that the claim is reserved for.
        ips: The addresses of these pods, as far as they are known.
    """

    pods: Sequence[PodUID]
    ips: Mapping[PodUID, str] = field(default_factory=dict)

    def wrote(self, entry: DaemonEntry) -> bool | None:
        """Whether this daemon wrote the entry, and not its predecessor; None if that is unknown.

        Daemons of the reference driver, and a domain's status, name the writer of an entry only by
        its address.
        """
        if entry.pod is not None:
            return entry.pod in self.pods
        known = {self.ips[pod] for pod in self.pods if pod in self.ips}
        if entry.ip in known:
            return True
        return False if len(known) == len(self.pods) else None


@dataclass(frozen=True, slots=True)
class PodLookupResult:
    """What the API server knows about a daemon that has written nothing itself.

    Attributes:
        pods: The pods of the domain's DaemonSet, including those that are bound to no node.
        missing_reason: Why there is no pod for this node; empty if that is unknown.
    """

    pods: tuple[DaemonPod, ...]
    missing_reason: str = ""


@dataclass(frozen=True, slots=True)
class DaemonClaimFailure:
    """The last failure to prepare the daemon's own claim on this node.

    Attributes:
        claim: The daemon's claim.
        pods: The pods that the claim is reserved for.
        error: Why it failed.
        is_final: The kubelet has been answered; the call is not waiting any more.
    """

    claim: ClaimRef
    pods: Sequence[PodUID]
    error: DriverError
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class DaemonReadiness:
    """The state of this node's daemon.

    Attributes:
        missing: What the daemon lacks; empty if the channel can be given.
        absent_peers: Other nodes that are known and not ready, by name.
        has_reported: The daemon has written its entry, so the API server need not be asked.
        is_unverified: The node's entry is Ready, but it is not known whether this daemon wrote it;
            the address of the daemon's pod would tell.
        is_outdated: The entry is Ready and the daemon is dead.
        has_claim_failed: The daemon's own claim failed on this node, so the daemon cannot start.
        remedy: What to do about it; empty if that is unknown.
    """

    missing: str
    absent_peers: tuple[NodeName, ...] = ()
    has_reported: bool = False
    is_unverified: bool = False
    is_outdated: bool = False
    has_claim_failed: bool = False
    remedy: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether the channel can be given."""
        return not self.missing


class Step(Enum):
    """What the wait does."""

    GIVE = auto()
    """The daemon is ready: the wait ends."""
    READ_ADDRESS = auto()
    """Read the daemon's pod, because its address says who wrote the entry."""
    TELL_FAILURE = auto()
    """Read the daemon's pod, and notify the user if its claim has failed: waiting does not help."""
    TELL_WAIT = auto()
    """Read the daemon's pod, and notify the user that the wait lasts."""
    WAIT = auto()
    """Wait until something changes, or until `WaitProgress.due`."""


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """What a wait has done so far.

    Attributes:
        lookups_at: When the daemon's pod is read, in order, without those that are past.
        address_due: When a pod whose address is missing may be read again.
        told_failure: The failure of the daemon's claim that was looked into.
        may_notify: Whether the user has not been notified yet.
    """

    lookups_at: tuple[float, ...]
    address_due: float = 0.0
    told_failure: DaemonClaimFailure | None = None
    may_notify: bool = True

    @classmethod
    def of(cls, now: float, deadline: float, *, may_notify: bool) -> Self:
        """The progress of a wait that begins now."""
        moments = (now + NOTIFY_AFTER_S, deadline - _LOOKUP_BEFORE_END_S)
        lookups_at = tuple(sorted(at for at in moments if now < at < deadline))
        return cls(lookups_at, may_notify=may_notify)

    def next(
        self, state: DaemonReadiness, failure: DaemonClaimFailure | None, now: float
    ) -> tuple[Step, Self]:
        """What is done next, for the last failure of the daemon's claim, and what is done then."""
        if state.is_ready:
            return Step.GIVE, self
        if state.is_unverified and now >= self.address_due:
            return Step.READ_ADDRESS, replace(self, address_due=now + _ADDRESS_INTERVAL_S)
        is_final = failure is not None and failure.is_final
        if self.may_notify and is_final and failure != self.told_failure:
            return Step.TELL_FAILURE, replace(self, told_failure=failure)
        if self.lookups_at and now >= self.lookups_at[0]:
            return Step.TELL_WAIT, replace(self, lookups_at=self.lookups_at[1:])
        return Step.WAIT, self

    def due(self, state: DaemonReadiness, now: float) -> float | None:
        """When to look again although nothing has changed; None: not before the end."""
        moments = list(self.lookups_at[:1])
        if state.is_unverified:
            moments.append(self.address_due)
        if state.is_outdated:
            moments.append(now + _LIVENESS_INTERVAL_S)
        return min(moments, default=None)


def clique_entries(clique: ComputeDomainClique) -> tuple[DaemonEntry, ...]:
    """The entries of a clique."""
    return tuple(
        DaemonEntry(
            daemon.node_name,
            _is_ready(daemon.status),
            daemon.pod_uid,
            daemon.message or "",
            daemon.ip_address,
        )
        for daemon in clique.daemons
    )


def status_entries(domain: ComputeDomain) -> tuple[DaemonEntry, ...]:
    """The entries of a domain's status, for domains whose daemons do not use cliques."""
    return tuple(
        DaemonEntry(node.name, _is_ready(node.status), ip=node.ip_address)
        for node in domain.status.nodes
    )


def assess(
    entries: Sequence[DaemonEntry], node: NodeName, daemon: OwnDaemon | None, min_nodes: int = 0
) -> DaemonReadiness:
    """The state of this node's daemon, by the entries alone.

    Args:
        entries: The entries of the domain's daemons in this node's clique, or on all its nodes.
        node: This node.
        daemon: The daemon that is prepared here; None if there is none. An entry that another pod
            wrote is left over from a daemon that is gone.
        min_nodes: How many nodes must have joined.
    """
    own = next((entry for entry in entries if entry.node == node), None)
    absent = tuple(sorted(e.node for e in entries if e.node != node and not e.is_ready))
    is_own = None if own is None or daemon is None else daemon.wrote(own)
    missing = next(_missing(own, daemon, is_own, len(entries), min_nodes), "")
    is_unverified = own is not None and own.is_ready and own.pod is None and is_own is not True
    return DaemonReadiness(missing, absent, is_own is True, is_unverified and daemon is not None)


def outdated(readiness: DaemonReadiness, reason: str) -> DaemonReadiness:
    """The same state of a daemon that is dead although its entry says READY, for this reason."""
    return replace(readiness, missing=reason, is_outdated=True)


def in_other_clique(
    readiness: DaemonReadiness, of_daemon: CliqueID, of_node: CliqueID
) -> DaemonReadiness:
    """The same state of a daemon that was started before the node's GPUs changed their clique."""
    where = f"are in {of_node} now" if of_node else "have no NVLink fabric any more"
    return replace(
        readiness,
        missing=f"it was started in the clique {of_daemon}, and the GPUs of this node {where}",
        has_reported=True,
        remedy="delete the daemon's pod: the next one joins the clique of the node",
    )


def explain(
    readiness: DaemonReadiness,
    found: PodLookupResult | None,
    node: NodeName,
    claim_failure: DaemonClaimFailure | None = None,
    namespace: str = "",
) -> DaemonReadiness:
    """The same state, with the reason why the daemon has written nothing itself.

    Args:
        readiness: The state by the entries alone.
        found: What the API server knows; None if it was not asked or did not answer.
        node: This node.
        claim_failure: Why this plugin could not prepare the daemon's claim.
        namespace: The namespace of the readers, which is the domain's.
    """
    if readiness.is_ready or (readiness.has_reported and not readiness.is_outdated):
        return readiness
    if found is None:
        if claim_failure is None:
            return readiness
        return _with_failure(readiness, claim_failure, "", namespace)
    here = [pod for pod in found.pods if pod.node == node]
    if not here:
        text = found.missing_reason or "the domain's DaemonSet has made no pod for this node"
        return replace(readiness, missing=text)
    pod = max(here, key=lambda each: (not each.is_terminating, each.created))
    name = f"its pod {pod.namespace}/{pod.name}"
    has_failed = claim_failure is not None and pod.uid in claim_failure.pods
    if claim_failure is not None and has_failed and not pod.is_terminating:
        return _with_failure(readiness, claim_failure, name, namespace)
    if readiness.is_outdated and _is_running(pod):
        return readiness
    return replace(readiness, missing=f"{name} {_pod_state(pod)}")


def not_ready_error(domain: Domain, node: NodeName, readiness: DaemonReadiness) -> RetryableError:
    """The error for a channel that cannot be given yet."""
    return RetryableError(
        Reason.DAEMON_NOT_READY,
        f"the IMEX daemon of ComputeDomain {domain} on node {node} is not ready: "
        f"{readiness.missing}{_absent_peers_text(readiness.absent_peers)}",
        readiness.remedy or _REMEDY,
        domain=domain.uid,
    )


def _missing(
    own: DaemonEntry | None,
    daemon: OwnDaemon | None,
    is_own: bool | None,
    joined: int,
    min_nodes: int,
) -> Iterator[str]:
    if daemon is None:
        yield "it has not been started here yet"
    elif own is None:
        yield "it has not joined the domain yet"
    elif is_own is False:
        yield "it has not joined the domain yet; the known entry is its predecessor's"
    elif not own.is_ready:
        yield own.message or "it has not reported READY yet"
    elif is_own is None:
        yield f"it is not known yet whether it wrote the entry of {own.ip or 'no address'}"
    elif joined < min_nodes:
        yield f"{joined} of the {min_nodes} nodes that the domain waits for have joined"


def _with_failure(
    readiness: DaemonReadiness, failure: DaemonClaimFailure, pod: str, namespace: str
) -> DaemonReadiness:
    """The state of a daemon that cannot start, because its claim failed here."""
    error = failure.error
    cause = f"{error.reason}: {error.message_for(namespace)}"
    prefix = f"{pod} cannot start: " if pod else ""
    text = f"{prefix}its claim {failure.claim.namespace}/{failure.claim.name} is refused, {cause}"
    return replace(readiness, missing=text, has_claim_failed=True, remedy=error.remedy)


def _is_running(pod: DaemonPod) -> bool:
    return not (pod.is_terminating or pod.problem or pod.is_finished)


def _pod_state(pod: DaemonPod) -> str:
    if pod.is_terminating:
        return "is being deleted and has not ended yet; a new one is created after that"
    if pod.problem:
        return f"is not running: {pod.problem}"
    if pod.is_finished:
        return "has ended"
    # Not whether it is Ready: its readiness probe fails until it has joined.
    return "runs and has not joined the domain yet" if pod.running_since else "is starting"


def _absent_peers_text(absent: Sequence[NodeName]) -> str:
    if not absent:
        return ""
    more = f" and {len(absent) - _MAX_PEERS} more" if len(absent) > _MAX_PEERS else ""
    named = ", ".join(absent[:_MAX_PEERS])
    return f" (not ready either, which does not delay this node: {named}{more})"


def _is_ready(status: str) -> bool:
    return status == Readiness.READY
