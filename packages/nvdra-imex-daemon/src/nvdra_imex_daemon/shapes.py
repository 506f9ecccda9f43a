"""Where the list of daemons is kept: a ComputeDomainClique, or the status of a ComputeDomain.

A shape says which object, where in it the list is, and what else of the object must be so. Objects
are JSON and go back with every field they came with. Source: spec/compute-domain.md §§3.2, 8.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types import names
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import DomainUID

from nvdra_imex_daemon import entries
from nvdra_imex_daemon.entries import Entries, Entry, Key, Member, Report

_GROUP_PATH: Final = f"/apis/{names.CONFIG_API_VERSION}"

Operations = list[dict[str, Any]]
"""A JSON patch."""


class Shape(Protocol):
    """One of the two; the rest of the daemon does not know which.

    Attributes:
        key: The field that names the node of an entry.
        collection: Path of the collection that the object is in.
        name: Of the object.
        subresource: What is written: empty, or `/status`.
        pointer: JSON pointer to the list.
        is_made_by_us: Whether we create the object where it is missing.
    """

    key: Key
    collection: str
    name: str
    subresource: str
    pointer: str
    is_made_by_us: bool

    def entries(self, obj: JsonObject) -> Entries:
        """The list in an object."""
        ...

    def filled(self, obj: JsonObject | None, found: Entries) -> JsonObject:
        """The object with this list, and with all else that we need it to say."""
        ...

    def shrunk(self, obj: JsonObject, found: Entries) -> JsonObject:
        """The object with this list and nothing else changed."""
        ...

    def expected(self, obj: JsonObject) -> int:
        """How many nodes the domain is to have, where the object says it; else 0."""
        ...


@dataclass(frozen=True, slots=True)
class Pod:
    """Our pod: one of the clique's owners, so that the last one gone takes the clique with it."""

    namespace: str
    name: str
    uid: str

    def owner(self) -> dict[str, str]:
        """As an owner reference."""
        return {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}


class CliqueShape:
    """A clique of its own object, in the namespace of the daemons; made by whoever comes first."""

    key = Key.CLIQUE
    subresource = ""
    pointer = "/daemons"
    is_made_by_us = True

    def __init__(self, domain: DomainUID, member: Member, pod: Pod) -> None:
        self.collection = f"{_GROUP_PATH}/namespaces/{pod.namespace}/computedomaincliques"
        self.name = names.clique_name(domain, member.clique)
        self._namespace = pod.namespace
        self._labels = {names.DOMAIN_LABEL: domain, names.CLIQUE_LABEL: member.clique}
        self._pod = pod

    def entries(self, obj: JsonObject) -> Entries:
        """`daemons`."""
        return obj.get("daemons") or ()

    def filled(self, obj: JsonObject | None, found: Entries) -> JsonObject:
        """With the labels by which the controller finds it, and our pod among its owners.

        The labels follow from the name, so nobody can have set others on purpose.
        """
        base = obj or {
            "apiVersion": names.CONFIG_API_VERSION,
            "kind": names.CLIQUE_KIND,
            "metadata": {"name": self.name, "namespace": self._namespace},
        }
        metadata = base["metadata"]
        owners = metadata.get("ownerReferences") or []
        is_owner = any(each.get("uid") == self._pod.uid for each in owners)
        labels: Mapping[str, str] = metadata.get("labels") or {}
        filled = {
            **metadata,
            "labels": {**labels, **self._labels},
            "ownerReferences": owners if is_owner else [*owners, self._pod.owner()],
        }
        return {**base, "metadata": filled, "daemons": list(found)}

    def shrunk(self, obj: JsonObject, found: Entries) -> JsonObject:
        """Our pod stays an owner: a clique without owners would stay for ever."""
        return {**obj, "daemons": list(found)}

    def expected(self, obj: JsonObject) -> int:
        """A clique does not say it."""
        del obj
        return 0


class StatusShape:
    """The `nodes` of the domain's own status, for controllers that know no cliques."""

    key = Key.STATUS
    subresource = "/status"
    pointer = "/status/nodes"
    is_made_by_us = False

    def __init__(self, domain: DomainUID, namespace: str, name: str) -> None:
        self.collection = f"{_GROUP_PATH}/namespaces/{namespace}/computedomains"
        self.name = name
        self._domain = domain

    def entries(self, obj: JsonObject) -> Entries:
        """`status.nodes`."""
        return (obj.get("status") or {}).get("nodes") or ()

    def filled(self, obj: JsonObject | None, found: Entries) -> JsonObject:
        """The domain must be there, and be the one that we were started for.

        Raises:
            RetryableError: `DomainNotFound`.
        """
        if obj is None or obj["metadata"].get("uid") != self._domain:
            raise RetryableError(
                Reason.DOMAIN_NOT_FOUND,
                f"there is no ComputeDomain {self.name} with UID {self._domain}",
                "nothing to do if the domain was deleted: this pod goes with it",
                domain=self._domain,
            )
        return self.shrunk(obj, found)

    def shrunk(self, obj: JsonObject, found: Entries) -> JsonObject:
        """The status keeps what else it says; its own field is required and has a default."""
        status = {"status": "NotReady", **(obj.get("status") or {})}
        return {**obj, "status": {**status, "nodes": list(found)}}

    def expected(self, obj: JsonObject) -> int:
        """`spec.numNodes`."""
        return int((obj.get("spec") or {}).get("numNodes") or 0)


def wanted(
    shape: Shape,
    obj: JsonObject | None,
    member: Member,
    report: Report,
    *,
    preferred: int | None,
    is_pruned: bool,
) -> JsonObject | None:
    """The object as it should be; None where it is so already.

    Raises:
        RetryableError: `DomainFull`, `DomainNotFound`.
    """
    before = shape.entries(obj) if obj is not None else ()
    after = entries.with_us(before, member, report, key=shape.key, preferred=preferred)
    ours = entries.own(after, member, shape.key)
    stored = entries.own(before, member, shape.key)
    assert ours is not None
    if stored is not None and entries.is_told(stored, ours, is_pruned=is_pruned):
        after = [stored if each is ours else each for each in after]
    filled = shape.filled(obj, after)
    return None if filled == obj else filled


def patch(shape: Shape, obj: JsonObject, change: JsonObject, member: Member) -> Operations | None:
    """The change as a patch, where it concerns nothing but what our own entry says; else None.

    It cannot conflict with what others write meanwhile, and does not apply where the entry is not
    the one we know. An index is never changed so: that needs the whole list.
    """
    before, after = shape.entries(obj), shape.entries(change)
    former, ours = (entries.own(each, member, shape.key) for each in (before, after))
    if former is None or ours is None or former.get("index") != ours.get("index"):
        return None
    if not entries.is_ours(former, member) or shape.shrunk(obj, after) != change:
        return None
    if [e for e in before if e is not former] != [e for e in after if e is not ours]:
        return None
    return _replacing(f"{shape.pointer}/{list(before).index(former)}", former, ours)


def _replacing(pointer: str, former: Entry, ours: Entry) -> Operations:
    return [
        {"op": "test", "path": pointer, "value": former},
        {"op": "replace", "path": pointer, "value": ours},
    ]
