# SPDX-License-Identifier: Apache-2.0
"""What a clique should contain, from what the daemons say on their pods. Pure.

The controller writes for the daemons that announce themselves. Entries of daemons that write
themselves, of an earlier release or of the reference driver, are never changed, and their indexes
are theirs. The result depends on the objects alone: every replica computes the same, and a second
time nothing changes. A plan is written over the version of the clique that it was computed from, so
that two daemons never get one index, whatever else is written.
Source: docs/reference/compute-domain.md, "ComputeDomainClique", "Principles of nvdra's
components".
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nvdra_api import names
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1.compute_domain import NO_CLIQUE, Readiness
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_runtime.computedomain.daemon_pods import DaemonPod

from nvdra_cd_controller import members

_NOT_IN_REFERENCE: Final = frozenset(("podUID", "message"))
"""Fields of an entry that the reference driver's definition of the resource drops."""

_MAX_MESSAGE_LENGTH: Final = 1024
"""Limit in the definition of the resource: a longer text of one would refuse the entries of all."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A daemon that says something of itself.

    Attributes:
        node: Its node.
        pod: Name of its pod, which becomes an owner of the clique.
        pod_uid: UID of that pod.
        says: What it says.
    """

    node: NodeName
    pod: str
    pod_uid: PodUID
    says: Announcement


@dataclass(frozen=True, slots=True)
class CliqueInputs:
    """What a clique is computed from.

    Attributes:
        domain: UID of the domain.
        clique: The clique.
        namespace: Namespace of the daemons and of the clique.
        stored: The clique as it is; None if it does not exist.
        announced: The daemons of this clique that announce themselves, one per node.
        stale: Nodes whose entries are to be removed.
        max_nodes: Indexes are less than this.
        drops_unknown_fields: Whether the cluster's definition of the resource is the reference
            driver's.
    """

    domain: DomainUID
    clique: CliqueID
    namespace: str
    stored: JsonObject | None = None
    announced: tuple[Announced, ...] = ()
    stale: Collection[NodeName] = field(default=frozenset())
    max_nodes: int = 18
    drops_unknown_fields: bool = False


def announced(pods: Iterable[DaemonPod]) -> Mapping[tuple[str, CliqueID], tuple[Announced, ...]]:
    """The daemons that announce themselves, by namespace and clique, in the order of their nodes.

    Of several pods of one node only the current one counts. While it has said nothing yet, nobody
    speaks for the node.
    """
    found: dict[tuple[str, CliqueID], list[Announced]] = {}
    for node, here in sorted(members.pods_by_node(pods).items()):
        pod = here[0]
        if pod.clique and pod.announcement is not None:
            said = Announced(node, pod.name, pod.uid, pod.announcement)
            found.setdefault((pod.namespace, pod.clique), []).append(said)
    return {key: tuple(said) for key, said in found.items()}


def elsewhere(
    said: Mapping[tuple[str, CliqueID], Sequence[Announced]], clique: CliqueID
) -> frozenset[NodeName]:
    """Nodes whose daemons announce another clique, as after a change of the fabric."""
    others = (daemons for (_, other), daemons in said.items() if other != clique)
    return frozenset(daemon.node for daemons in others for daemon in daemons)


def is_settled(
    inputs: CliqueInputs, pods: Iterable[DaemonPod], labelled: Collection[NodeName]
) -> bool:
    """Whether nothing more is to be expected soon, so that a write need not wait for others.

    That is so when every daemon has announced itself and some have no entry yet, or when every
    daemon is ready. Daemons that write themselves do not announce anything.
    """
    current = {node: here[0] for node, here in members.pods_by_node(pods).items()}
    if not set(labelled) <= set(current):
        return False
    here = [
        pod
        for pod in current.values()
        if pod.clique in (None, inputs.clique)
        and not (pod.announcement and pod.announcement.has_left)
    ]
    entries = {entry.get("nodeName") for entry in _entries(inputs.stored)}
    said = [pod.announcement for pod in here]
    if any(one is None and pod.node not in entries for pod, one in zip(here, said, strict=True)):
        return False
    is_joining = any(pod.announcement and pod.node not in entries for pod in here)
    return is_joining or all(one is None or one.is_ready for one in said)


def desired(inputs: CliqueInputs) -> JsonObject | None:
    """The clique as it should be; None if it is as it should be, or need not exist."""
    before = _entries(inputs.stored)
    after = _planned_entries(inputs, before)
    if inputs.stored is None:
        return _new_clique(inputs, after) if after else None
    metadata = inputs.stored["metadata"]
    owners = metadata.get("ownerReferences") or []
    completed = [*owners, *_missing_owners(inputs, after, owners)]
    if after == list(before) and completed == owners:
        return None
    changed = {**metadata, "ownerReferences": completed} if completed else metadata
    return {**inputs.stored, "metadata": changed, "daemons": after}


def _planned_entries(inputs: CliqueInputs, before: Sequence[JsonObject]) -> list[JsonObject]:
    said = {each.node: each for each in inputs.announced if not each.says.has_left}
    left = [each for each in inputs.announced if each.says.has_left]
    kept = [
        each
        for each in before
        if each.get("nodeName") not in inputs.stale
        and not any(_is_written_by(each, one) for one in left)
    ]
    indexes = _kept_indexes(kept, said, inputs)
    listed = {each.get("nodeName") for each in kept}
    newcomers = [one for node, one in sorted(said.items()) if node not in indexes]
    indexes |= _new_indexes(newcomers, kept, indexes, said, inputs.max_nodes)
    after = [_updated(each, said.get(each["nodeName"]), indexes, inputs) for each in kept]
    added = [
        newcomer
        for newcomer in newcomers
        if newcomer.node not in listed and newcomer.node in indexes
    ]
    return [*after, *(_entry({}, one, indexes[one.node], inputs) for one in added)]


def _kept_indexes(
    kept: Sequence[JsonObject], said: Mapping[NodeName, Announced], inputs: CliqueInputs
) -> dict[NodeName, int]:
    """The indexes of the announced daemons that have a good one already."""
    taken = {_index(each) for each in kept if each["nodeName"] not in said}
    indexes: dict[NodeName, int] = {}
    for each in kept:
        node, index = each["nodeName"], _index(each)
        if node not in said or each.get("cliqueID") != inputs.clique or index in taken:
            continue
        if index is not None and 0 <= index < inputs.max_nodes:
            indexes[node] = index
            taken.add(index)
    return indexes


def _new_indexes(
    newcomers: Sequence[Announced],
    kept: Sequence[JsonObject],
    indexes: Mapping[NodeName, int],
    said: Mapping[NodeName, Announced],
    max_nodes: int,
) -> dict[NodeName, int]:
    """Indexes for those without one: first what they had before, then the lowest free ones."""
    taken = {_index(each) for each in kept if each["nodeName"] not in said} | set(indexes.values())
    given: dict[NodeName, int] = {}
    for newcomer in newcomers:
        wish = newcomer.says.preferred_index
        if wish is not None and 0 <= wish < max_nodes and wish not in taken:
            given[newcomer.node] = wish
            taken.add(wish)
    free = (index for index in range(max_nodes) if index not in taken)
    for newcomer in newcomers:
        if newcomer.node not in given and (index := next(free, None)) is not None:
            given[newcomer.node] = index
    return given


def _updated(
    entry: JsonObject,
    one: Announced | None,
    indexes: Mapping[NodeName, int],
    inputs: CliqueInputs,
) -> JsonObject:
    """The entry as its daemon says it; unchanged if it says nothing or there is no index for it."""
    if one is None or one.node not in indexes:
        return entry
    updated = _entry(entry if _is_written_by(entry, one) else {}, one, indexes[one.node], inputs)
    ignored = _NOT_IN_REFERENCE if inputs.drops_unknown_fields else frozenset()
    fields = {*entry, *updated} - ignored
    is_same = all(entry.get(name) == updated.get(name) for name in fields)
    return entry if is_same else updated


def _is_written_by(entry: JsonObject, one: Announced) -> bool:
    """Whether an entry is of this pod: by its UID, or by its address if the entry has no UID."""
    if entry.get("nodeName") != one.node:
        return False
    if pod_uid := entry.get("podUID"):
        return bool(pod_uid == one.pod_uid)
    return bool(entry.get("ipAddress") == one.says.ip)


def _entry(before: JsonObject, one: Announced, index: int, inputs: CliqueInputs) -> JsonObject:
    says = one.says
    entry: dict[str, Any] = {
        **before,
        "nodeName": one.node,
        "ipAddress": says.ip,
        "cliqueID": inputs.clique,
        "index": index,
        "status": str(Readiness.READY if says.is_ready else Readiness.NOT_READY),
        "podUID": one.pod_uid,
    }
    entry.pop("message", None)
    if says.message and not says.is_ready:
        entry["message"] = says.message[:_MAX_MESSAGE_LENGTH]
    return entry


def _new_clique(inputs: CliqueInputs, entries: list[JsonObject]) -> JsonObject:
    labels = {names.DOMAIN_LABEL: inputs.domain, names.CLIQUE_LABEL: inputs.clique}
    return {
        "apiVersion": names.NVIDIA_API_VERSION,
        "kind": names.CLIQUE_KIND,
        "metadata": {
            "name": names.clique_name(inputs.domain, inputs.clique),
            "namespace": inputs.namespace,
            "labels": labels,
            "ownerReferences": _missing_owners(inputs, entries, ()),
        },
        "daemons": entries,
    }


def _missing_owners(
    inputs: CliqueInputs, entries: Sequence[JsonObject], owners: Sequence[JsonObject]
) -> list[JsonObject]:
    """The pods of announced daemons with an entry that are not among the owners yet."""
    known = {owner.get("uid") for owner in owners}
    listed = {entry.get("nodeName") for entry in entries}
    return [
        {"apiVersion": "v1", "kind": "Pod", "name": one.pod, "uid": one.pod_uid}
        for one in inputs.announced
        if one.node in listed and one.pod_uid not in known and not one.says.has_left
    ]


def _entries(stored: JsonObject | None) -> Sequence[JsonObject]:
    return tuple((stored or {}).get("daemons") or ())


def _index(entry: JsonObject) -> int | None:
    index = entry.get("index", 0)  # an encoder that omits zeros means 0
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def clique_of(name: str, domain: DomainUID) -> CliqueID:
    """The clique that an object of this name is for; empty if it is none of the domain's."""
    prefix = f"{domain}."
    return CliqueID(name.removeprefix(prefix)) if name.startswith(prefix) else NO_CLIQUE
