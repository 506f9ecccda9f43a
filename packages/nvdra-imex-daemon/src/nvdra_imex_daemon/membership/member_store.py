# SPDX-License-Identifier: Apache-2.0
"""The object in which daemons are listed: a ComputeDomainClique, or a ComputeDomain's status.

A store knows the object's path, where the list is in it, and what else the object must contain.
Objects are JSON, and are written with every field that they were read with.
Source: docs/reference/compute-domain.md, "ComputeDomainClique"; docs/reference/imex.md, "Joining
the clique".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nvdra_api import names
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import DomainUID
from nvdra_api.meta import JsonObject

from nvdra_imex_daemon.membership import entries
from nvdra_imex_daemon.membership.entries import (
    Entries,
    Entry,
    MemberIdentity,
    MemberStatus,
    NodeField,
)

_GROUP_PATH: Final = f"/apis/{names.NVIDIA_API_VERSION}"

JsonPatch = list[dict[str, Any]]
"""A JSON patch (RFC 6902)."""


class MemberStore(Protocol):
    """One of the two kinds of objects. The rest of the daemon does not depend on which.

    Attributes:
        node_field: The field of an entry that has the node's name.
        collection: Path of the collection that the object is in.
        name: Name of the object.
        subresource: The subresource to write: empty, or `/status`.
        pointer: JSON pointer to the list.
    """

    node_field: NodeField
    collection: str
    name: str
    subresource: str
    pointer: str

    def entries(self, obj: JsonObject) -> Entries:
        """The list in the object."""
        ...

    def completed(self, obj: JsonObject | None, member_entries: Entries) -> JsonObject:
        """The object with this list and with everything else that it must contain."""
        ...

    def with_entries(self, obj: JsonObject, member_entries: Entries) -> JsonObject:
        """The object with this list and no other change."""
        ...

    def expected_nodes(self, obj: JsonObject) -> int:
        """How many nodes the domain is to have; 0 if the object does not say it."""
        ...


@dataclass(frozen=True, slots=True)
class Pod:
    """Our pod. Each daemon's pod owns the clique, so that the clique is deleted with the last."""

    namespace: str
    name: str
    uid: str

    def owner_reference(self) -> dict[str, str]:
        """The pod as an owner reference."""
        return {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}


class CliqueMemberStore:
    """A ComputeDomainClique in the daemons' namespace, created by the first daemon."""

    node_field = NodeField.CLIQUE
    subresource = ""
    pointer = "/daemons"

    def __init__(self, domain: DomainUID, member: MemberIdentity, pod: Pod) -> None:
        self.collection = f"{_GROUP_PATH}/namespaces/{pod.namespace}/computedomaincliques"
        self.name = names.clique_name(domain, member.clique)
        self._namespace = pod.namespace
        self._labels = {names.DOMAIN_LABEL: domain, names.CLIQUE_LABEL: member.clique}
        self._pod = pod

    def entries(self, obj: JsonObject) -> Entries:
        """The clique's `daemons`."""
        return obj.get("daemons") or ()

    def completed(self, obj: JsonObject | None, member_entries: Entries) -> JsonObject:
        """The clique with the labels by which the controller finds it, owned by our pod too.

        The labels follow from the clique's name, so that other values cannot be intended.
        """
        base = obj or {
            "apiVersion": names.NVIDIA_API_VERSION,
            "kind": names.CLIQUE_KIND,
            "metadata": {"name": self.name, "namespace": self._namespace},
        }
        metadata = base["metadata"]
        owners = metadata.get("ownerReferences") or []
        is_owner = any(owner.get("uid") == self._pod.uid for owner in owners)
        labels: Mapping[str, str] = metadata.get("labels") or {}
        completed = {
            **metadata,
            "labels": {**labels, **self._labels},
            "ownerReferences": owners if is_owner else [*owners, self._pod.owner_reference()],
        }
        return {**base, "metadata": completed, "daemons": list(member_entries)}

    def with_entries(self, obj: JsonObject, member_entries: Entries) -> JsonObject:
        """The clique with this list. Our pod stays an owner: without one, it would never go."""
        return {**obj, "daemons": list(member_entries)}

    def expected_nodes(self, obj: JsonObject) -> int:
        """0, because a clique does not say it."""
        del obj
        return 0


class StatusMemberStore:
    """The `nodes` of the domain's status, for controllers that do not know cliques."""

    node_field = NodeField.STATUS
    subresource = "/status"
    pointer = "/status/nodes"

    def __init__(self, domain: DomainUID, namespace: str, name: str) -> None:
        self.collection = f"{_GROUP_PATH}/namespaces/{namespace}/computedomains"
        self.name = name
        self._domain = domain

    def entries(self, obj: JsonObject) -> Entries:
        """The domain's `status.nodes`."""
        return (obj.get("status") or {}).get("nodes") or ()

    def completed(self, obj: JsonObject | None, member_entries: Entries) -> JsonObject:
        """The domain with this list.

        Raises:
            RetryableError: `DomainNotFound`: The domain does not exist, or has another UID.
        """
        if obj is None or obj["metadata"].get("uid") != self._domain:
            raise RetryableError(
                Reason.DOMAIN_NOT_FOUND,
                f"there is no ComputeDomain {self.name} with UID {self._domain}",
                "nothing to do if the domain was deleted: this pod will be deleted too",
                domain=self._domain,
            )
        return self.with_entries(obj, member_entries)

    def with_entries(self, obj: JsonObject, member_entries: Entries) -> JsonObject:
        """The domain with this list. `status.status` is required and gets its default."""
        status = {"status": "NotReady", **(obj.get("status") or {})}
        return {**obj, "status": {**status, "nodes": list(member_entries)}}

    def expected_nodes(self, obj: JsonObject) -> int:
        """The domain's `spec.numNodes`."""
        return int((obj.get("spec") or {}).get("numNodes") or 0)


def desired(
    store: MemberStore,
    obj: JsonObject | None,
    member: MemberIdentity,
    status: MemberStatus,
    *,
    preferred_index: int | None,
    drops_unknown_fields: bool,
) -> JsonObject | None:
    """The object with our entry as it should be; None if it is already.

    Raises:
        RetryableError: `DomainFull`, `DomainNotFound`.
    """
    before = store.entries(obj) if obj is not None else ()
    after = entries.with_own_entry(
        before, member, status, node_field=store.node_field, preferred_index=preferred_index
    )
    own = entries.find_own(after, member, store.node_field)
    stored = entries.find_own(before, member, store.node_field)
    assert own is not None
    if stored is not None and entries.is_up_to_date(
        stored, own, drops_unknown_fields=drops_unknown_fields
    ):
        after = [stored if each is own else each for each in after]
    completed = store.completed(obj, after)
    return None if completed == obj else completed


def own_entry_patch(
    store: MemberStore, obj: JsonObject, change: JsonObject, member: MemberIdentity
) -> JsonPatch | None:
    """The change as a patch of our own entry; None if it changes anything else, or the index.

    The patch does not conflict with writes of others, and fails if our entry is not the one that we
    know. A new index needs the whole list, because it must be unique.
    """
    before, after = store.entries(obj), store.entries(change)
    old, new = (entries.find_own(each, member, store.node_field) for each in (before, after))
    if old is None or new is None or old.get("index") != new.get("index"):
        return None
    if not entries.is_written_by(old, member) or store.with_entries(obj, after) != change:
        return None
    if [e for e in before if e is not old] != [e for e in after if e is not new]:
        return None
    return _replace_entry(f"{store.pointer}/{list(before).index(old)}", old, new)


def _replace_entry(pointer: str, old: Entry, new: Entry) -> JsonPatch:
    return [
        {"op": "test", "path": pointer, "value": old},
        {"op": "replace", "path": pointer, "value": new},
    ]
