# SPDX-License-Identifier: Apache-2.0
"""The entries of a clique's daemons: what ours must say, and how it gets its index.

Every daemon writes only its own entry. Entries are JSON as the API server has them, so that fields
of a newer version survive. The same rules apply to the list in a ComputeDomainClique and, if
cliques are disabled, to the list in a ComputeDomain's status, which contains several cliques.
Source: docs/reference/compute-domain.md, "ComputeDomainClique"; docs/reference/imex.md, "Joining
the clique"; docs/reference/compute-domain.md, "Races and correctness" (KW-24, 25, 28, 29).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import CliqueID, NodeName, PodUID
from nvdra_api.v1beta1.compute_domain import Readiness

Entry = Mapping[str, Any]
Entries = Sequence[Entry]


NOT_IN_REFERENCE: Final = frozenset(("podUID", "message"))
"""Fields that the reference driver's clique does not have."""


class NodeField(StrEnum):
    """The field of an entry that has the node's name. There is one entry per node."""

    CLIQUE = "nodeName"
    STATUS = "name"


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Who we are in a clique.

    Attributes:
        clique: Our clique; entries of other cliques are not our peers.
        node: Our node, which identifies our entry.
        ip: IP of our pod, at which peers reach us.
        pod_uid: UID of our pod.
        max_nodes: Maximum number of daemons in a clique; indexes are less than this.
    """

    clique: CliqueID
    node: NodeName
    ip: str
    pod_uid: PodUID
    max_nodes: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What our entry says of us.

    Attributes:
        is_ready: Whether our IMEX is READY.
        message: Why it is not, in one line.
    """

    is_ready: bool
    message: str = ""


def index_of(entry: Entry) -> int | None:
    """The index in an entry; None if it is not an integer."""
    index = entry.get("index", 0)  # an encoder that omits zeros means 0
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def find_own(
    entries: Entries, member: MemberIdentity, node_field: NodeField = NodeField.CLIQUE
) -> Entry | None:
    """Our node's entry, whichever of its pods wrote it."""
    return next((entry for entry in entries if entry.get(node_field) == member.node), None)


def is_written_by(entry: Entry, member: MemberIdentity) -> bool:
    """Whether our pod wrote the entry: by its UID, or by its IP if the entry has no UID."""
    if pod_uid := entry.get("podUID"):
        return bool(pod_uid == member.pod_uid)
    return bool(entry.get("ipAddress") == member.ip)


def with_own_entry(
    entries: Entries,
    member: MemberIdentity,
    status: MemberStatus,
    *,
    node_field: NodeField = NodeField.CLIQUE,
    preferred_index: int | None = None,
) -> list[Entry]:
    """The desired list: our entry with this status, all other entries unchanged.

    If our node has an entry, it keeps its index, whichever pod wrote it; the status is replaced.
    Otherwise we take the preferred index if it is free (the one we had before the list was lost),
    or else the lowest free one.

    Args:
        entries: The current entries.
        member: Who we are.
        status: What our entry is to say.
        node_field: The field that has the node's name.
        preferred_index: The index to take if it is free.

    Raises:
        RetryableError: `DomainFull`: Every index is used.
    """
    stored = find_own(entries, member, node_field)
    used = _used_indexes(entries, member, node_field)
    index = _kept_index(stored, member, used)
    if index is None:
        index = _free_index(used, member, preferred_index)
    entry = _updated_entry(stored, member, status, index, node_field)
    updated = [
        entry if each is stored else each
        for each in entries
        if each is stored or each.get(node_field) != member.node
    ]
    return updated if stored is not None else [*updated, entry]


def without_own_entry(
    entries: Entries, member: MemberIdentity, node_field: NodeField = NodeField.CLIQUE
) -> list[Entry]:
    """The list without the entry that our pod wrote. A successor's entry stays."""
    return [
        entry
        for entry in entries
        if not (entry.get(node_field) == member.node and is_written_by(entry, member))
    ]


def is_up_to_date(stored: Entry, desired: Entry, *, drops_unknown_fields: bool) -> bool:
    """Whether the stored entry has all desired values.

    Args:
        stored: The entry as the API server has it.
        desired: The entry from `with_own_entry`.
        drops_unknown_fields: Whether the cluster's CRD is older than this daemon and drops fields
            that the reference driver does not have, so that writing them would have no effect.
    """
    fields = {*stored, *desired} - (NOT_IN_REFERENCE if drops_unknown_fields else frozenset())
    return all(stored.get(field) == desired.get(field) for field in fields)


def _used_indexes(
    entries: Entries, member: MemberIdentity, node_field: NodeField
) -> frozenset[int]:
    """Indexes of the other daemons in our clique."""
    indexes = (
        index_of(entry)
        for entry in entries
        if entry.get(node_field) != member.node and entry.get("cliqueID") == member.clique
    )
    return frozenset(index for index in indexes if index is not None)


def _kept_index(
    own_entry: Entry | None, member: MemberIdentity, used: frozenset[int]
) -> int | None:
    """The index in our node's entry if it is in range, in our clique, and not used by others.

    If two daemons have the same index, the first one to write takes another, and the second one
    then finds its index unique.
    """
    if own_entry is None or own_entry.get("cliqueID") != member.clique:
        return None
    index = index_of(own_entry)
    if index is None or not 0 <= index < member.max_nodes or index in used:
        return None
    return index


def _free_index(used: frozenset[int], member: MemberIdentity, preferred_index: int | None) -> int:
    if (
        preferred_index is not None
        and 0 <= preferred_index < member.max_nodes
        and preferred_index not in used
    ):
        return preferred_index
    free = next((index for index in range(member.max_nodes) if index not in used), None)
    if free is None:
        raise RetryableError(
            Reason.DOMAIN_FULL,
            f"clique {member.clique} has room for {member.max_nodes} nodes and all indexes are "
            f"used: node {member.node} cannot join",
            "use fewer nodes of one NVLink clique in one ComputeDomain, or raise the controller's "
            "--max-nodes-per-imex-domain and create the domain again",
            node=member.node,
        )
    return free


def _updated_entry(
    own_entry: Entry | None,
    member: MemberIdentity,
    status: MemberStatus,
    index: int,
    node_field: NodeField,
) -> Entry:
    before = own_entry if own_entry is not None and is_written_by(own_entry, member) else {}
    entry: dict[str, Any] = {
        **before,
        node_field.value: member.node,
        "ipAddress": member.ip,
        "cliqueID": member.clique,
        "index": index,
        "status": str(Readiness.READY if status.is_ready else Readiness.NOT_READY),
    }
    if node_field is NodeField.CLIQUE:
        entry.pop("message", None)
        entry["podUID"] = member.pod_uid
        if status.message and not status.is_ready:
            entry["message"] = status.message
    return entry
