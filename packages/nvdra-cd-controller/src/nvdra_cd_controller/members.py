# SPDX-License-Identifier: Apache-2.0
"""The members of a domain, and stale entries, from cliques, pods and labelled nodes.

The result depends on the current objects alone: it is the same in whatever order they arrived, and
however often. Source: docs/reference/compute-domain.md, "Status and readiness", "Races and
correctness" (KW-20, 23, 29, 31, 32).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvdra_api.ids import CliqueID, NodeName
from nvdra_api.v1beta1 import ComputeDomainClique
from nvdra_api.v1beta1.compute_domain import NO_CLIQUE, NO_INDEX, ComputeDomainNode, Readiness
from nvdra_api.v1beta1.compute_domain_clique import ComputeDomainDaemonInfo
from nvdra_runtime.computedomain import imex_links
from nvdra_runtime.computedomain.daemon_pods import DaemonPod
from nvdra_runtime.computedomain.imex_links import ImexLinks


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a domain.

    Attributes:
        node: Name of the node.
        ip: IP of the daemon's pod; empty until it has one.
        clique: The node's clique; empty without fabric, and before the daemon has joined.
        index: The daemon's index in the clique; `NO_INDEX` if it has none.
        is_ready: Whether the daemon is ready.
        written_status: What the daemon itself has written into `status.nodes`, which stays as it
            is; empty if it writes to a clique.
        is_listed: Whether the node is in `status.nodes`: it is not before its daemon has joined.
        not_ready_because: Why the member is not ready, as text; empty when it is ready.
        pod_problem: Why the daemon's pod does not run, as text; empty if nothing is wrong with it.
        links: What is wrong with the connections of its IMEX; a member that is not ready has none.
        silent_since: Since when its daemon runs without having said anything to the API server, as
            the kubelet writes it; empty if it has, or does not run.
        moved_to: The clique that the GPUs of the node are in now, empty for none, if it is not that
            of its daemon; None if it is.
        has_pod: Whether the node has a daemon's pod, whatever its state.
    """

    node: NodeName
    ip: str = ""
    clique: CliqueID = NO_CLIQUE
    index: int = NO_INDEX
    is_ready: bool = False
    written_status: str = ""
    is_listed: bool = True
    not_ready_because: str = ""
    pod_problem: str = ""
    links: ImexLinks = imex_links.WELL
    silent_since: str = ""
    moved_to: CliqueID | None = None
    has_pod: bool = True


def current(
    cliques: Iterable[ComputeDomainClique],
    pods: Iterable[DaemonPod],
    labelled: Collection[NodeName],
    listed: Iterable[ComputeDomainNode] = (),
    no_pod_because: str = "",
) -> tuple[Member, ...]:
    """The members of one domain, in the order of the nodes' names.

    Args:
        cliques: The domain's cliques.
        pods: The pods of its DaemonSets in all managed namespaces.
        labelled: The nodes that carry the domain's label, which have a workload of the domain.
        listed: `status.nodes` as stored, where daemons that do not use cliques keep their entries.
        no_pod_because: Why the domain's DaemonSet could not make a pod; empty if nothing says so.
    """
    pods = tuple(pods)
    node_pods, ended = pods_by_node(pods), _ended_by_node(pods)
    entries: dict[NodeName, list[ComputeDomainDaemonInfo]] = defaultdict(list)
    for clique in cliques:
        for entry in clique.daemons:
            entries[entry.node_name].append(entry)
    in_status = {each.name: each for each in listed if each.clique_id != NO_CLIQUE}
    members = (
        _member(
            node,
            entries.get(node, ()),
            node_pods.get(node, ()),
            ended.get(node),
            in_status.get(node),
            labelled,
            no_pod_because,
        )
        for node in sorted({*entries, *node_pods, *labelled})
    )
    return tuple(member for member in members if member is not None)


def stale_entries(
    clique: ComputeDomainClique,
    others: Iterable[ComputeDomainClique],
    pods: Iterable[DaemonPod],
    labelled: Collection[NodeName],
) -> tuple[NodeName, ...]:
    """Nodes whose entries in one clique are stale, in the order of their names.

    An entry is kept while its node has a pod of the domain or the domain's label: a daemon that
    comes back takes its entry over and keeps its index. An entry is stale if its node has neither,
    or if the node's pod has joined another clique.

    Args:
        clique: The clique to prune.
        others: The domain's other cliques, or those of them that have entries of the same nodes.
        pods: The pods of its DaemonSets.
        labelled: The nodes that carry the domain's label.
    """
    node_pods = pods_by_node(pods)
    elsewhere: dict[NodeName, list[ComputeDomainDaemonInfo]] = defaultdict(list)
    for other in others:
        for entry in other.daemons:
            elsewhere[entry.node_name].append(entry)

    def is_stale(entry: ComputeDomainDaemonInfo) -> bool:
        present = node_pods.get(entry.node_name, ())
        if not present:
            return entry.node_name not in labelled
        has_moved = any(_is_written_by(other, present[0]) for other in elsewhere[entry.node_name])
        return has_moved and not any(_is_written_by(entry, pod) for pod in present)

    return tuple(sorted(entry.node_name for entry in clique.daemons if is_stale(entry)))


def pods_by_node(pods: Iterable[DaemonPod]) -> Mapping[NodeName, Sequence[DaemonPod]]:
    """The pods that have not finished, by node; the current pod of a node comes first."""
    grouped: dict[NodeName, list[DaemonPod]] = defaultdict(list)
    for pod in pods:
        if pod.node and not pod.is_finished:
            grouped[pod.node].append(pod)
    for group in grouped.values():
        group.sort(key=lambda pod: (not pod.is_terminating, pod.created, pod.uid), reverse=True)
    return grouped


def _ended_by_node(pods: Iterable[DaemonPod]) -> Mapping[NodeName, DaemonPod]:
    """The last pod that has finished, by node."""
    finished = (each for each in pods if each.is_finished)
    return {pod.node: pod for pod in sorted(finished, key=lambda pod: (pod.created, pod.uid))}


def _is_written_by(entry: ComputeDomainDaemonInfo, pod: DaemonPod) -> bool:
    """Whether this pod wrote the entry. The reference driver's entries have only an IP address.

    A pod that has no address yet has not joined: such an entry is its predecessor's.
    """
    if entry.pod_uid is not None:
        return entry.pod_uid == pod.uid
    return bool(pod.ip) and pod.ip == entry.ip_address


def _member(
    node: NodeName,
    entries: Sequence[ComputeDomainDaemonInfo],
    pods: Sequence[DaemonPod],
    ended: DaemonPod | None,
    listed: ComputeDomainNode | None,
    labelled: Collection[NodeName],
    no_pod_because: str,
) -> Member | None:
    pod = pods[0] if pods else None
    if entries and (pod or node in labelled):
        return _member_with_entry(_current_entry(entries, pods), pods)
    if pod is None:
        return _without_pod(node, ended, no_pod_because) if node in labelled else None
    if pod.clique == NO_CLIQUE:
        return _member_without_fabric(pod)
    if pod.writes_status and listed is not None and pod.ip and listed.ip_address == pod.ip:
        is_ready = listed.status == Readiness.READY and not pod.down_because
        reason = pod.problem or pod.down_because or "its daemon is not ready"
        return Member(
            node,
            pod.ip,
            listed.clique_id,
            listed.index,
            is_ready,
            written_status=listed.status,
            not_ready_because="" if is_ready else reason,
            pod_problem=pod.problem,
            links=pod.links if is_ready else imex_links.WELL,
        )
    if pod.is_terminating and node not in labelled:
        return None
    has_spoken = pod.clique is not None or pod.announcement is not None
    silent_since = "" if has_spoken or pod.problem else pod.running_since
    return Member(
        node,
        pod.ip,
        is_listed=False,
        not_ready_because=pod.problem or _not_joined(pod, silent_since),
        pod_problem=pod.problem,
        silent_since=silent_since,
    )


def _without_pod(node: NodeName, ended: DaemonPod | None, no_pod_because: str) -> Member:
    """A member whose DaemonSet has made no pod yet, or none since the last one has ended."""
    problem = "" if ended is None else ended.problem
    if no_pod_because:
        reason = problem = f"its daemon's pod cannot be created: {no_pod_because}"
    elif ended and problem:
        reason = f"its daemon's pod {ended.name} has ended: {problem}"
    else:
        reason = _NO_POD
    return Member(
        node, is_listed=False, not_ready_because=reason, pod_problem=problem, has_pod=False
    )


def _not_joined(pod: DaemonPod, silent_since: str) -> str:
    if not silent_since:
        return _NOT_JOINED
    return (
        f"its daemon runs since {silent_since} and has not joined yet; if this stays, it does not "
        f"reach the API server: check the network policies of the namespace {pod.namespace} and "
        f"the network of the node, and run kubectl -n {pod.namespace} logs {pod.name}"
    )


_NO_POD = "it has no daemon pod yet"
_NOT_JOINED = "its daemon has not joined yet"


def _current_entry(
    entries: Sequence[ComputeDomainDaemonInfo], pods: Sequence[DaemonPod]
) -> ComputeDomainDaemonInfo:
    """Of several entries of one node, the current pod's; else the first by the clique's name."""

    def rank(entry: ComputeDomainDaemonInfo) -> tuple[int, str]:
        writers = (position for position, pod in enumerate(pods) if _is_written_by(entry, pod))
        return next(writers, len(pods)), entry.clique_id

    return min(entries, key=rank)


def _member_with_entry(entry: ComputeDomainDaemonInfo, pods: Sequence[DaemonPod]) -> Member:
    """A member is ready only if its current pod said so, and while that pod can still say so."""
    pod = pods[0] if pods else None
    is_current = pod is not None and _is_written_by(entry, pod)
    is_ready = (
        pod is not None
        and is_current
        and entry.status == Readiness.READY
        and not pod.down_because
        and (pod.announcement is None or pod.announcement.is_ready)
    )
    problem = pod.problem if pod is not None and not is_ready else ""
    return Member(
        node=entry.node_name,
        ip=entry.ip_address,
        clique=entry.clique_id,
        index=entry.index,
        is_ready=is_ready,
        not_ready_because="" if is_ready else next(_not_ready_causes(entry, pod, is_current)),
        pod_problem=problem,
        links=pod.links if pod is not None and is_ready else imex_links.WELL,
        moved_to=pod.links.node_clique if pod is not None and is_current else None,
    )


def _not_ready_causes(
    entry: ComputeDomainDaemonInfo, pod: DaemonPod | None, is_current: bool
) -> Iterator[str]:
    """Causes, the most important one first."""
    if pod is None:
        yield "its daemon's pod is gone"
        return
    if pod.problem:
        yield pod.problem
    if pod.down_because:
        yield pod.down_because
    if not is_current:
        yield "its new daemon has not joined yet"
    if pod.announcement is not None and pod.announcement.has_left:
        yield "its daemon has ended"
    if pod.announcement is not None and pod.announcement.message:
        yield pod.announcement.message
    elif entry.message:
        yield entry.message
    yield "its daemon is not ready"


def _member_without_fabric(pod: DaemonPod) -> Member | None:
    if pod.is_terminating:
        return None
    reason = "" if pod.is_ready else pod.problem or "its daemon's pod is not ready"
    return Member(
        pod.node,
        pod.ip,
        is_ready=pod.is_ready and bool(pod.ip),
        is_listed=bool(pod.ip),
        not_ready_because=reason,
        pod_problem=pod.problem,
    )
