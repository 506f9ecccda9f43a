# SPDX-License-Identifier: Apache-2.0
"""Informers for everything that belongs to ComputeDomains, indexed by the UID of the domain.

The index follows every change, including our own writes, so that a snapshot of one domain costs as
much as that domain has objects, however many domains there are.
Source: docs/reference/compute-domain.md, "Watches and indexes", "Scalability and latency" (KW-1,
KW-8).
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, Generic, TypeVar

from nvdra_api import names
from nvdra_api.ids import DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_runtime.computedomain import daemon_pods
from nvdra_runtime.computedomain.daemon_pods import DaemonPod
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.informer import FindPath, Informer, fixed_path
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.backoff import Backoff

from nvdra_cd_controller import api_paths, kept_parts
from nvdra_cd_controller.domain_snapshot import TEMPLATE, Child, DomainSnapshot, Kind

EnqueueDomain = Callable[[DomainUID], None]

MAX_UNNAMED_CLIQUES: Final = 256
"""More than a domain of 4,000 nodes of GB200 NVL72 has."""

_HAS_DOMAIN_LABEL: Final = {"labelSelector": names.DOMAIN_LABEL}
_BACKOFF: Final = Backoff(first_s=0.25, ceiling_s=1)
"""One process has these informers, and after an outage of the API server each status waits for the
last of them."""


_NAMESPACED: Final = {
    "DaemonSet": kept_parts.of_child,
    "NetworkPolicy": kept_parts.of_child,
    names.CLIQUE_KIND: kept_parts.of_clique,
    "Pod": kept_parts.of_pod,
}
"""The kinds that are read in managed namespaces only, and what is kept of an object."""

K = TypeVar("K", bound=str)
G = TypeVar("G", bound=str)


class _Index(Generic[K, G]):
    """Which keys belong to which group; a key belongs to at most one."""

    def __init__(self) -> None:
        self.group_of: dict[K, G] = {}
        self._keys: dict[G, set[K]] = defaultdict(set)

    def move(self, key: K, group: G | None) -> set[G]:
        """Put a key into a group, or into none. Returns its groups before and now."""
        before = self.group_of.pop(key, None)
        if before is not None:
            self._keys[before].discard(key)
            if not self._keys[before]:
                del self._keys[before]
        if group is not None:
            self.group_of[key] = group
            self._keys[group].add(key)
        return {found for found in (before, group) if found is not None}

    def groups(self) -> set[G]:
        """The groups that have keys."""
        return set(self._keys)

    def keys(self, group: G | None) -> Collection[K]:
        """The keys of a group, in no order."""
        return self._keys.get(group, ()) if group is not None else ()


class IndexedInformer:
    """An informer of one collection, with an index from the domain's UID to the objects' keys."""

    def __init__(
        self,
        api: Client,
        observe_restart: Callable[[str], None],
        enqueue: EnqueueDomain,
        find_path: FindPath,
        keep: Callable[[JsonObject], JsonObject],
        *,
        params: Mapping[str, str] = _HAS_DOMAIN_LABEL,
        metadata_only: bool = False,
    ) -> None:
        self._enqueue = enqueue
        self._index = _Index[str, DomainUID]()
        self.informer = Informer(
            api,
            find_path,
            params,
            observe_restart,
            on_change=self._update_index,
            transform=kept_parts.SharedParts(keep),
            backoff=_BACKOFF,
            metadata_only=metadata_only,
        )

    def objects_of(self, uid: DomainUID) -> Iterator[JsonObject]:
        """The objects of one domain, in the order of their keys."""
        found = map(self.informer.get, sorted(self._index.keys(uid)))
        return (obj for obj in found if obj is not None)

    def namespace_of(self, uid: DomainUID) -> str:
        """The namespace of one of the domain's objects; empty if there is none here."""
        return next(iter(self._index.keys(uid)), "").partition("/")[0]

    def uids(self) -> set[DomainUID]:
        """The UIDs of all domains that have at least one object here."""
        return self._index.groups()

    def _update_index(self, keys: frozenset[str]) -> None:
        changed: set[DomainUID] = set()
        for key in keys:
            with background_tasks.contain("An object cannot be indexed", object=key):
                # Before its UID is read, so that nothing stays where it does not belong.
                changed |= self._index.move(key, None)
                obj = self.informer.get(key)
                uid = DomainUID("" if obj is None else _uid_of(obj))
                changed |= self._index.move(key, uid or None)
        for uid in changed:
            with background_tasks.contain("A domain cannot be queued", uid=uid):
                self._enqueue(uid)


class DomainInformers:
    """All informers of the controller; they run inside `running`.

    There is one of all ComputeDomains, one of the metadata of claim templates with a domain's
    label, and one of the metadata of nodes with it. Of each other kind there is one for each
    managed namespace. Where the host runs IMEX there are domains and templates only.
    """

    def __init__(
        self,
        api: Client,
        namespaces: Sequence[str],
        enqueue: EnqueueDomain,
        observe_restart: Callable[[str], None],
        *,
        is_host_managed: bool,
    ) -> None:
        self._api = api
        self._enqueue = enqueue
        self._template_names = _Index[DomainUID, str]()
        self._parsed: dict[DomainUID, tuple[JsonObject, ComputeDomain]] = {}

        informer = partial(IndexedInformer, api, observe_restart)
        domains, nodes = (fixed_path(api_paths.path(kind)) for kind in (names.DOMAIN_KIND, "Node"))
        self._domains = informer(self._domain_changed, domains, kept_parts.of_domain, params={})
        self._templates = informer(
            self._template_changed,
            self._templates_path,
            kept_parts.of_template,
            metadata_only=True,
        )
        used = () if is_host_managed else namespaces
        self._by_kind: dict[str, dict[str, IndexedInformer]] = {
            names.DOMAIN_KIND: {"": self._domains},
            TEMPLATE: {"": self._templates},
            **{
                kind: {
                    name: informer(enqueue, fixed_path(api_paths.path(kind, name)), keep)
                    for name in used
                }
                for kind, keep in _NAMESPACED.items()
            },
            "Node": {}
            if is_host_managed
            else {"": informer(enqueue, nodes, kept_parts.of_node, metadata_only=True)},
        }

    def all_informers(self) -> Iterator[IndexedInformer]:
        """Every informer."""
        return (found for of_kind in self._by_kind.values() for found in of_kind.values())

    @property
    def problem(self) -> str:
        """Why the caches may be out of date; empty if they are current."""
        for indexed in self.all_informers():
            if indexed.informer.error:
                return indexed.informer.error
        is_synced = all(indexed.informer.has_synced for indexed in self.all_informers())
        return "" if is_synced else "not everything has been listed yet"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DomainInformers"]:
        """Run all informers for the block; `wait_synced` waits for the first list of each."""
        async with AsyncExitStack() as stack:
            for indexed in self.all_informers():
                await stack.enter_async_context(indexed.informer.running())
            yield self

    async def wait_synced(self) -> None:
        """Wait until every informer has listed: before that, a missing object may exist."""
        for indexed in self.all_informers():
            await indexed.informer.wait_for_sync()

    def all_domains(self) -> Iterator[ComputeDomain]:
        """Every domain that can be read, in the order of the UIDs."""
        for uid in sorted(self._domains.uids()):
            for stored in self._domains.objects_of(uid):
                with background_tasks.contain("A ComputeDomain cannot be read", uid=uid) as read:
                    domain = self._parse_domain(uid, stored)
                if read.error is None:
                    yield domain

    def snapshot(self, uid: DomainUID) -> DomainSnapshot:
        """Everything that carries a domain's UID, as it is now.

        Workload templates of other namespaces are ignored: who may create one there could label
        it with the UID of another's domain and block that domain's deletion with a finalizer.
        So are network policies of another name: they are an administrator's.
        """
        stored = self._stored_domain(uid)
        namespace = stored["metadata"]["namespace"] if stored else ""
        templates = self._children(TEMPLATE, uid)
        pods = tuple(map(daemon_pods.read, self._objects("Pod", uid)))
        all_cliques = list(self._objects(names.CLIQUE_KIND, uid))
        cliques = _read_cliques(all_cliques, uid, pods)
        return DomainSnapshot(
            uid=uid,
            domain=None if stored is None else self._parse_domain(uid, stored),
            stored=stored or {},
            daemonsets=self._children("DaemonSet", uid),
            network_policies=tuple(
                policy
                for policy in self._children("NetworkPolicy", uid)
                if policy.name == names.daemon_name(uid)
            ),
            daemon_templates=tuple(
                template
                for template in templates
                if not _is_workload_template(template)
                and template.namespace in self._by_kind["DaemonSet"]
            ),
            workload_templates=tuple(
                template
                for template in templates
                if _is_workload_template(template) and namespace in ("", template.namespace)
            ),
            cliques=tuple(map(ComputeDomainClique.model_validate, cliques)),
            clique_objects=tuple(cliques),
            has_unread_cliques=len(cliques) < len(all_cliques),
            pods=pods,
            nodes=tuple(NodeName(node["metadata"]["name"]) for node in self._objects("Node", uid)),
        )

    def template(self, key: str) -> JsonObject | None:
        """The metadata of a claim template with a domain's label, by its namespace and name."""
        return self._templates.informer.get(key)

    def domain_uids(self) -> set[DomainUID]:
        """UIDs of all domains, and of deleted domains that have left objects behind."""
        return {uid for informer in self.all_informers() for uid in informer.uids()}

    def namespace_of(self, uid: DomainUID) -> str:
        """The namespace of whose users the domain is, or of those who made up its UID."""
        return self._domains.namespace_of(uid) or self._templates.namespace_of(uid)

    def record_write(self, obj: JsonObject) -> None:
        """Put the result of our own write into the cache before the watch reports it.

        A write that removed the last finalizer of a terminating object counts as its deletion.
        """
        informer = self._informer_of(obj)
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            informer.record_delete(obj)
        else:
            informer.record_write(obj)

    def record_deletion(self, obj: JsonObject) -> None:
        """Remove an object from the cache before the watch reports its deletion."""
        self._informer_of(obj).record_delete(obj)

    def _informer_of(self, obj: JsonObject) -> Informer:
        of_kind = self._by_kind[obj["kind"]]
        return (of_kind.get("") or of_kind[obj["metadata"]["namespace"]]).informer

    def _objects(self, kind: str, uid: DomainUID) -> Iterator[JsonObject]:
        return (obj for found in self._by_kind[kind].values() for obj in found.objects_of(uid))

    def _children(self, kind: Kind, uid: DomainUID) -> tuple[Child, ...]:
        return tuple(Child(kind, obj) for obj in self._objects(kind, uid))

    def _stored_domain(self, uid: DomainUID) -> JsonObject | None:
        return next(self._domains.objects_of(uid), None)

    def _parse_domain(self, uid: DomainUID, stored: JsonObject) -> ComputeDomain:
        known = self._parsed.get(uid)
        if known is None or known[0] is not stored:
            known = self._parsed[uid] = (stored, ComputeDomain.model_validate(stored))
        return known[1]

    async def _templates_path(self, deadline: float, is_lost: bool) -> str:
        stale = await self._api.dra_api_version(deadline) if is_lost else ""
        version = await self._api.dra_api_version(deadline, stale=stale)
        return apiversions.templates_path(version)

    def _domain_changed(self, uid: DomainUID) -> None:
        """Enqueue the domain, and note the name of the template that it uses."""
        stored = self._stored_domain(uid)
        self._template_names.move(uid, None if stored is None else _template_key(stored))
        if stored is None:
            self._parsed.pop(uid, None)
        self._enqueue(uid)

    def _template_changed(self, uid: DomainUID) -> None:
        """Enqueue the domain, and every other domain that waits for the template's name."""
        name = self._template_names.group_of.get(uid)
        for waiting in {uid, *self._template_names.keys(name)}:
            self._enqueue(waiting)


def _read_cliques(
    cliques: Sequence[JsonObject], uid: DomainUID, pods: Sequence[DaemonPod]
) -> Sequence[JsonObject]:
    """Those that a pod of the domain names, and `MAX_UNNAMED_CLIQUES` more.

    What a domain costs has a bound, whatever a daemon's token is used for. Without a pod are the
    cliques of daemons that start, and of nodes whose entries are still to be removed.
    """
    named = {names.clique_name(uid, pod.clique) for pod in pods if pod.clique}
    others = MAX_UNNAMED_CLIQUES
    read = []
    for clique in cliques:
        is_named = clique["metadata"]["name"] in named
        if is_named or others > 0:
            read.append(clique)
            others -= not is_named
    return read


def _uid_of(obj: JsonObject) -> str:
    """The UID of the domain that an object is, or that its label names; empty if there is none."""
    metadata = obj["metadata"]
    if obj.get("kind") == names.DOMAIN_KIND:
        return str(metadata["uid"])
    return str((metadata.get("labels") or {}).get(names.DOMAIN_LABEL, ""))


def _template_key(stored: JsonObject) -> str:
    channel = (stored.get("spec") or {}).get("channel") or {}
    name = (channel.get("resourceClaimTemplate") or {}).get("name", "")
    return f"{stored['metadata']['namespace']}/{name}"


def _is_workload_template(template: Child) -> bool:
    labels = template.object["metadata"].get("labels") or {}
    return bool(labels.get(names.DOMAIN_TARGET_LABEL) != names.TARGET_DAEMON)
