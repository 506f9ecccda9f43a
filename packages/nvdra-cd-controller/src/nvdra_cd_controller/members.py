"""Cliques, pods and labelled nodes → who is a member of a domain, and which entries are stale.

Nothing but what is there now decides: the same objects give the same members, in whatever order
they came, and however often. Source: spec/compute-domain.md §6.8, §14.2 (KW-20, 23, 29, 31, 32).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvdra_api.protocol.daemon_pods import DaemonPod
from nvdra_api.types.domains import (
    NO_CLIQUE,
    NO_INDEX,
    CliqueDaemon,
    ComputeDomainClique,
    DomainNode,
    Readiness,
)
from nvdra_api.types.ids import CliqueID, NodeName


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a domain.

    Attributes:
        node: Its name.
        ip: Of the daemon's pod; empty where it has none yet.
        clique: Empty without fabric, and before the daemon has joined.
        index: Its place in the clique; `NO_INDEX` without one.
        is_ready: Its daemon works.
        is_listed: It belongs into `status.nodes`; others have not joined yet.
        lacks: What it lacks, for people; empty when ready.
        trouble: What keeps its pod from running; empty while nothing does.
    """

    node: NodeName
    ip: str = ""
    clique: CliqueID = NO_CLIQUE
    index: int = NO_INDEX
    is_ready: bool = False
    is_listed: bool = True
    lacks: str = ""
    trouble: str = ""


def of(
    cliques: Iterable[ComputeDomainClique],
    pods: Iterable[DaemonPod],
    labelled: Collection[NodeName],
    listed: Iterable[DomainNode] = (),
) -> tuple[Member, ...]:
    """The members of one domain, by name of the node.

    Args:
        cliques: The domain's.
        pods: Of its DaemonSet, in all managed namespaces.
        labelled: Nodes that carry the domain's label: a workload of it is there.
        listed: `status.nodes` as stored, where daemons without cliques keep their own entries.
    """
    here = _pods_by_node(pods)
    entries: dict[NodeName, list[CliqueDaemon]] = defaultdict(list)
    for clique in cliques:
        for entry in clique.daemons:
            entries[entry.node_name].append(entry)
    theirs = {each.name: each for each in listed if each.clique_id != NO_CLIQUE}
    found = (
        _member(node, entries.get(node, ()), here.get(node, ()), theirs.get(node), labelled)
        for node in sorted({*entries, *here, *labelled})
    )
    return tuple(member for member in found if member is not None)


def stale(
    clique: ComputeDomainClique,
    others: Iterable[ComputeDomainClique],
    pods: Iterable[DaemonPod],
    labelled: Collection[NodeName],
) -> tuple[NodeName, ...]:
    """Nodes whose entries in one clique nobody will take back, in order of their names.

    An entry stays while the node has a pod of the domain or its label: a daemon that comes back
    takes its place again, and so keeps its index. It is stale without both, or when the node's pod
    has joined another clique.

    Args:
        clique: The one to prune.
        others: The domain's further cliques.
        pods: Of its DaemonSet.
        labelled: Nodes that carry the domain's label.
    """
    here = _pods_by_node(pods)
    elsewhere: dict[NodeName, list[CliqueDaemon]] = defaultdict(list)
    for other in others:
        for entry in other.daemons:
            elsewhere[entry.node_name].append(entry)

    def is_stale(entry: CliqueDaemon) -> bool:
        present = here.get(entry.node_name, ())
        if not present:
            return entry.node_name not in labelled
        moved = any(_speaks(other, present[0]) for other in elsewhere[entry.node_name])
        return moved and not any(_speaks(entry, pod) for pod in present)

    return tuple(sorted(entry.node_name for entry in clique.daemons if is_stale(entry)))


def _pods_by_node(pods: Iterable[DaemonPod]) -> Mapping[NodeName, Sequence[DaemonPod]]:
    """The pods that have not ended, on each node the one that counts first."""
    grouped: dict[NodeName, list[DaemonPod]] = defaultdict(list)
    for pod in pods:
        if pod.node and not pod.is_over:
            grouped[pod.node].append(pod)
    for group in grouped.values():
        group.sort(key=lambda pod: (not pod.is_leaving, pod.created, pod.uid), reverse=True)
    return grouped


def _speaks(entry: CliqueDaemon, pod: DaemonPod) -> bool:
    """Did this pod write the entry? The reference's daemons leave only their address to tell by."""
    if entry.pod_uid is not None:
        return entry.pod_uid == pod.uid
    return not pod.ip or pod.ip == entry.ip_address


def _member(
    node: NodeName,
    entries: Sequence[CliqueDaemon],
    pods: Sequence[DaemonPod],
    listed: DomainNode | None,
    labelled: Collection[NodeName],
) -> Member | None:
    pod = pods[0] if pods else None
    if entries and (pod or node in labelled):
        return _joined(_choice(entries, pods), pods)
    if pod is None:
        return Member(node, is_listed=False, lacks=_NO_POD) if node in labelled else None
    if pod.clique == NO_CLIQUE:
        return _without_fabric(pod)
    if pod.writes_status and listed is not None and pod.ip and listed.ip_address == pod.ip:
        is_ready = listed.status == Readiness.READY
        lacks = "" if is_ready else pod.trouble or "its daemon is not ready"
        return Member(
            node, pod.ip, listed.clique_id, listed.index, is_ready, lacks=lacks, trouble=pod.trouble
        )
    if pod.is_leaving and node not in labelled:
        return None
    return Member(
        node, pod.ip, is_listed=False, lacks=pod.trouble or _NOT_JOINED, trouble=pod.trouble
    )


_NO_POD = "it has no daemon pod yet"
_NOT_JOINED = "its daemon has not joined yet"


def _choice(entries: Sequence[CliqueDaemon], pods: Sequence[DaemonPod]) -> CliqueDaemon:
    """Of several entries of one node the one whose pod counts first; else by name of the clique."""

    def rank(entry: CliqueDaemon) -> tuple[int, str]:
        speakers = (place for place, pod in enumerate(pods) if _speaks(entry, pod))
        return next(speakers, len(pods)), entry.clique_id

    return min(entries, key=rank)


def _joined(entry: CliqueDaemon, pods: Sequence[DaemonPod]) -> Member:
    """Ready only by the word of the incarnation that is there now, never of one before it."""
    current = pods[0] if pods else None
    speaks = current is not None and _speaks(entry, current)
    is_ready = speaks and entry.status == Readiness.READY
    trouble = current.trouble if current is not None and not is_ready else ""
    return Member(
        node=entry.node_name,
        ip=entry.ip_address,
        clique=entry.clique_id,
        index=entry.index,
        is_ready=is_ready,
        lacks="" if is_ready else next(_lacking(entry, current, speaks)),
        trouble=trouble,
    )


def _lacking(entry: CliqueDaemon, pod: DaemonPod | None, speaks: bool) -> Iterator[str]:
    if pod is None:
        yield "its daemon's pod is gone"
        return
    if pod.trouble:
        yield pod.trouble
    if not speaks:
        yield "its new daemon has not joined yet"
    if entry.message:
        yield entry.message
    yield "its daemon is not ready"


def _without_fabric(pod: DaemonPod) -> Member | None:
    if pod.is_leaving:
        return None
    lacks = "" if pod.is_ready else pod.trouble or "its daemon's pod is not ready"
    return Member(
        pod.node,
        pod.ip,
        is_ready=pod.is_ready and bool(pod.ip),
        is_listed=bool(pod.ip),
        lacks=lacks,
        trouble=pod.trouble,
    )
