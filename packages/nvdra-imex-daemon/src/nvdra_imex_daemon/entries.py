"""The list of a clique's daemons: what it must say about us, and how an entry gets its index.

Every daemon writes its own entry and nobody else's. Entries are JSON as the API server holds them,
so that fields of a newer version survive. The same rules serve the list in a ComputeDomainClique
and, where cliques are switched off, the one in a ComputeDomain's status, which holds several
cliques. Source: spec/compute-domain.md §§3.2, 8.4, 14.2 (KW-24, 25, 28, 29).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nvdra_api.types.domains import Readiness
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import CliqueID, NodeName, PodUID

Entry = Mapping[str, Any]
Entries = Sequence[Entry]


ADDED: Final = frozenset(("podUID", "message"))
"""Fields that the reference's clique does not have."""


class Key(StrEnum):
    """The field that names the node: one entry for each value."""

    CLIQUE = "nodeName"
    STATUS = "name"


@dataclass(frozen=True, slots=True)
class Member:
    """Who we are in a clique.

    Attributes:
        clique: Ours; entries of others are not our peers.
        node: Names our entry.
        ip: Of our pod, where peers reach us.
        pod_uid: Which incarnation we are.
        places: How many daemons a clique may have: indexes are 0 to places-1.
    """

    clique: CliqueID
    node: NodeName
    ip: str
    pod_uid: PodUID
    places: int


@dataclass(frozen=True, slots=True)
class Report:
    """What our entry says of us.

    Attributes:
        is_ready: Whether our IMEX said READY.
        message: What it lacks otherwise, one line.
    """

    is_ready: bool
    message: str = ""


def index_of(entry: Entry) -> int | None:
    """The place that an entry claims; None where it is no number."""
    index = entry.get("index", 0)  # an encoder that omits zeros means 0
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def own(entries: Entries, member: Member, key: Key = Key.CLIQUE) -> Entry | None:
    """Our node's entry, whichever incarnation wrote it."""
    return next((each for each in entries if each.get(key) == member.node), None)


def is_ours(entry: Entry, member: Member) -> bool:
    """Did this incarnation write it? By the pod, and by its IP where the entry names no pod."""
    if pod_uid := entry.get("podUID"):
        return bool(pod_uid == member.pod_uid)
    return bool(entry.get("ipAddress") == member.ip)


def with_us(
    entries: Entries,
    member: Member,
    report: Report,
    *,
    key: Key = Key.CLIQUE,
    preferred: int | None = None,
) -> list[Entry]:
    """The list as it should be: everybody else as they are, and our entry with this report.

    An entry that our node has keeps its index, whoever wrote it; the report is ours alone, so
    nothing of a predecessor's readiness is inherited. Otherwise we take `preferred` where it is
    free (the index that we had before the list was lost), or the smallest that is.

    Args:
        entries: As they are.
        member: Who we are.
        report: What to say.
        key: The field that names the node.
        preferred: Index to take if it is free.

    Raises:
        RetryableError: `DomainFull`: every index is taken.
    """
    known = own(entries, member, key)
    taken = _taken(entries, member, key)
    index = _kept(known, member, taken)
    if index is None:
        index = _free(taken, member, preferred)
    entry = _entry(known, member, report, index, key)
    stay = [
        entry if each is known else each
        for each in entries
        if each is known or each.get(key) != member.node
    ]
    return stay if known is not None else [*stay, entry]


def without_us(entries: Entries, member: Member, key: Key = Key.CLIQUE) -> list[Entry]:
    """The list without the entry that this incarnation wrote; a successor's stays."""
    return [e for e in entries if not (e.get(key) == member.node and is_ours(e, member))]


def is_told(stored: Entry, wanted: Entry, *, is_pruned: bool) -> bool:
    """Does the stored entry say all that we want?

    Args:
        stored: As the API server holds it.
        wanted: From `with_us`.
        is_pruned: The cluster's CRD is older than us and drops what the reference does not know;
            writing that again and again would change nothing.
    """
    fields = {*stored, *wanted} - (ADDED if is_pruned else frozenset())
    return all(stored.get(field) == wanted.get(field) for field in fields)


def _taken(entries: Entries, member: Member, key: Key) -> frozenset[int]:
    """Indexes of the other daemons of our clique."""
    indexes = (
        index_of(each)
        for each in entries
        if each.get(key) != member.node and each.get("cliqueID") == member.clique
    )
    return frozenset(index for index in indexes if index is not None)


def _kept(known: Entry | None, member: Member, taken: frozenset[int]) -> int | None:
    """The index that our node has already, if it may stay: in range, in our clique, ours alone.

    Where two daemons have one index, whoever writes first moves away, and the other then finds
    itself alone.
    """
    if known is None or known.get("cliqueID") != member.clique:
        return None
    index = index_of(known)
    if index is None or not 0 <= index < member.places or index in taken:
        return None
    return index


def _free(taken: frozenset[int], member: Member, preferred: int | None) -> int:
    if preferred is not None and 0 <= preferred < member.places and preferred not in taken:
        return preferred
    free = next((index for index in range(member.places) if index not in taken), None)
    if free is None:
        raise RetryableError(
            Reason.DOMAIN_FULL,
            f"clique {member.clique} has room for {member.places} nodes and all indexes are taken: "
            f"node {member.node} cannot join",
            "let fewer nodes of one NVLink clique work in one ComputeDomain, or raise the "
            "controller's --max-nodes-per-imex-domain and make the domain anew",
            node=member.node,
        )
    return free


def _entry(known: Entry | None, member: Member, report: Report, index: int, key: Key) -> Entry:
    former = known if known is not None and is_ours(known, member) else {}
    entry: dict[str, Any] = {
        **former,
        key.value: member.node,
        "ipAddress": member.ip,
        "cliqueID": member.clique,
        "index": index,
        "status": str(Readiness.READY if report.is_ready else Readiness.NOT_READY),
    }
    if key is Key.CLIQUE:
        entry.pop("message", None)
        entry["podUID"] = member.pod_uid
        if report.message and not report.is_ready:
            entry["message"] = report.message
    return entry
