# SPDX-License-Identifier: Apache-2.0
"""Informers for everything that belongs to ComputeDomains, indexed by the UID of the domain.

The index follows every change, including our own writes, so that a snapshot of one domain costs as
much as that domain has objects, however many domains there are.
Source: docs/reference/compute-domain.md, "Watches and indexes", "Scalability and latency" (KW-1,
KW-8).
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

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
from nvdra_cd_controller.domain_snapshot import TEMPLATE, Child, DomainSnapshot
from nvdra_cd_controller.shared_parts import SharedParts

EnqueueDomain = Callable[[DomainUID], None]

MAX_UNNAMED_CLIQUES: Final = 256
"""More than a domain of 4,000 nodes of GB200 NVL72 has."""

_HAS_DOMAIN_LABEL: Final = {"labelSelector": names.DOMAIN_LABEL}
_BACKOFF: Final = Backoff(first_s=0.25, ceiling_s=1)
"""One process has these informers, and after an outage of the API server each status waits for the
last of them."""


class IndexedInformer:
    """An informer of one resource, with an index from the domain's UID to the objects' keys."""

    def __init__(
        self,
        api: Client,
        locate: FindPath,
        params: Mapping[str, str],
        enqueue: EnqueueDomain,
        observe_restart: Callable[[str], None],
        *,
        uid_of: Callable[[JsonObject], str],
        keep: Callable[[JsonObject], JsonObject],
        metadata_only: bool,
    ) -> None:
        self._uid_of = uid_of
        self._enqueue = enqueue
        self._uids: dict[str, DomainUID] = {}
        self._keys: dict[DomainUID, set[str]] = defaultdict(set)
        self.informer = Informer(
            api,
            locate,
            params,
            observe_restart,
            on_change=self._update_index,
            transform=SharedParts(keep),
            backoff=_BACKOFF,
            in_pages=True,
            metadata_only=metadata_only,
        )

    def objects_of(self, uid: DomainUID) -> Iterator[JsonObject]:
        """The objects of one domain, in the order of their keys."""
        for key in sorted(self._keys.get(uid, ())):
            obj = self.informer.get(key)
            if obj is not None:
                yield obj

    def namespace_of(self, uid: DomainUID) -> str:
        """The namespace of one of the domain's objects; empty if there is none here."""
        return next(iter(self._keys.get(uid, ())), "").partition("/")[0]

    def uids(self) -> set[DomainUID]:
        """The UIDs of all domains that have at least one object here."""
        return set(self._keys)

    def _update_index(self, keys: frozenset[str]) -> None:
        changed: set[DomainUID] = set()
        for key in keys:
            with background_tasks.contain("An object cannot be indexed", object=key):
                self._update_key(key, changed)
        for uid in changed:
            with background_tasks.contain("A domain cannot be queued", uid=uid):
                self._enqueue(uid)

    def _update_key(self, key: str, changed: set[DomainUID]) -> None:
        before = self._uids.pop(key, None)
        if before is not None:
            changed.add(before)
            self._keys[before].discard(key)
            if not self._keys[before]:
                del self._keys[before]
        obj = self.informer.get(key)
        uid = DomainUID("" if obj is None else self._uid_of(obj))
        if uid:
            self._uids[key] = uid
            self._keys[uid].add(key)
            changed.add(uid)


class DomainInformers:
    """All informers of the controller; they run inside `running`.

    Attributes:
        domains: All ComputeDomains.
        templates: The metadata of claim templates with a domain's label, in all namespaces.
        daemonsets: One informer per managed namespace, by the namespace's name.
        network_policies: One informer per managed namespace, by the namespace's name.
        cliques: One informer per managed namespace, by the namespace's name.
        pods: One informer per managed namespace, by the namespace's name.
        nodes: The metadata of nodes with a domain's label; None where the host runs IMEX.
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
        self._domains_by_template: dict[str, set[DomainUID]] = defaultdict(set)
        self._template_by_domain: dict[DomainUID, str] = {}
        self._parsed: dict[DomainUID, tuple[JsonObject, ComputeDomain]] = {}

        def informer(
            locate: FindPath,
            keep: Callable[[JsonObject], JsonObject],
            params: Mapping[str, str] = _HAS_DOMAIN_LABEL,
            uid_of: Callable[[JsonObject], str] = _uid_from_label,
            on_change: EnqueueDomain = enqueue,
            *,
            metadata_only: bool = False,
        ) -> IndexedInformer:
            return IndexedInformer(
                api,
                locate,
                params,
                on_change,
                observe_restart,
                uid_of=uid_of,
                keep=keep,
                metadata_only=metadata_only,
            )

        self.domains = informer(
            fixed_path(api_paths.ALL_DOMAINS),
            kept_parts.of_domain,
            {},
            _uid_from_metadata,
            on_change=self._domain_changed,
        )
        self.templates = informer(
            self._templates_path,
            kept_parts.of_template,
            on_change=self._template_changed,
            metadata_only=True,
        )
        used = () if is_host_managed else namespaces
        self.daemonsets = {
            name: informer(fixed_path(api_paths.daemonsets(name)), kept_parts.of_child)
            for name in used
        }
        self.network_policies = {
            name: informer(fixed_path(api_paths.network_policies(name)), kept_parts.of_child)
            for name in used
        }
        self.cliques = {
            name: informer(fixed_path(api_paths.cliques(name)), kept_parts.of_clique)
            for name in used
        }
        self.pods = {
            name: informer(fixed_path(api_paths.pods(name)), kept_parts.of_pod) for name in used
        }
        self.nodes = (
            None
            if is_host_managed
            else informer(fixed_path(api_paths.nodes()), kept_parts.of_node, metadata_only=True)
        )

    def all_informers(self) -> Iterator[IndexedInformer]:
        """Every informer."""
        yield self.domains
        yield self.templates
        yield from self.daemonsets.values()
        yield from self.network_policies.values()
        yield from self.cliques.values()
        yield from self.pods.values()
        if self.nodes is not None:
            yield self.nodes

    @property
    def problem(self) -> str:
        """Why the caches may be out of date; empty if they are current."""
        for each in self.all_informers():
            if each.informer.error:
                return each.informer.error
        is_synced = all(each.informer.has_synced for each in self.all_informers())
        return "" if is_synced else "not everything has been listed yet"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DomainInformers"]:
        """Run all informers for the block; `wait_synced` waits for the first list of each."""
        async with AsyncExitStack() as stack:
            for each in self.all_informers():
                await stack.enter_async_context(each.informer.running())
            yield self

    async def wait_synced(self) -> None:
        """Wait until every informer has listed: before that, a missing object may exist."""
        for each in self.all_informers():
            await each.informer.wait_for_sync()

    def all_domains(self) -> Iterator[ComputeDomain]:
        """Every domain that can be read, in the order of the UIDs."""
        for uid in sorted(self.domains.uids()):
            for stored in self.domains.objects_of(uid):
                with background_tasks.contain("A ComputeDomain cannot be read", uid=uid) as read:
                    domain = self._parse_domain(uid, stored)
                if read.error is None:
                    yield domain

    def snapshot(self, uid: DomainUID) -> DomainSnapshot:
        """Everything that carries a domain's UID, as it is now.

        Workload templates of other namespaces are ignored: whoever may create one there could label
        it with the UID of somebody else's domain and block that domain's deletion with a finalizer.
        So are network policies of another name: they are an administrator's.
        """
        stored = next(self.domains.objects_of(uid), None)
        namespace = stored["metadata"]["namespace"] if stored else ""
        templates = [Child(TEMPLATE, each) for each in self.templates.objects_of(uid)]
        pods = tuple(
            daemon_pods.read(each)
            for informer in self.pods.values()
            for each in informer.objects_of(uid)
        )
        all_cliques = [
            clique for informer in self.cliques.values() for clique in informer.objects_of(uid)
        ]
        cliques = _read_cliques(all_cliques, uid, pods)
        return DomainSnapshot(
            uid=uid,
            domain=None if stored is None else self._parse_domain(uid, stored),
            stored=stored or {},
            daemonsets=tuple(
                Child("DaemonSet", each)
                for informer in self.daemonsets.values()
                for each in informer.objects_of(uid)
            ),
            network_policies=tuple(
                Child("NetworkPolicy", policy)
                for informer in self.network_policies.values()
                for policy in informer.objects_of(uid)
                if policy["metadata"]["name"] == names.daemon_name(uid)
            ),
            daemon_templates=tuple(
                template
                for template in templates
                if not _is_workload_template(template) and template.namespace in self.daemonsets
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
            nodes=tuple(
                NodeName(each["metadata"]["name"])
                for each in (self.nodes.objects_of(uid) if self.nodes else ())
            ),
        )

    def domain_uids(self) -> set[DomainUID]:
        """UIDs of all domains, and of deleted domains that have left objects behind."""
        return {uid for each in self.all_informers() for uid in each.uids()}

    def namespace_of(self, uid: DomainUID) -> str:
        """The namespace of whose users the domain is, or of those who made up its UID."""
        return self.domains.namespace_of(uid) or self.templates.namespace_of(uid)

    def record_write(self, obj: JsonObject) -> None:
        """Put the result of our own write into the cache before the watch reports it.

        A write that removed the last finalizer of a terminating object counts as its deletion.
        """
        informer = self._informer_of(obj).informer
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            informer.record_delete(obj)
        else:
            informer.record_write(obj)

    def record_deletion(self, obj: JsonObject) -> None:
        """Remove an object from the cache before the watch reports its deletion."""
        self._informer_of(obj).informer.record_delete(obj)

    def _informer_of(self, obj: JsonObject) -> IndexedInformer:
        kind, namespace = obj["kind"], obj["metadata"].get("namespace", "")
        if kind == names.DOMAIN_KIND:
            return self.domains
        if kind == TEMPLATE:
            return self.templates
        by_kind = {
            "DaemonSet": self.daemonsets,
            "NetworkPolicy": self.network_policies,
            names.CLIQUE_KIND: self.cliques,
        }
        if kind in by_kind:
            return by_kind[kind][namespace]
        assert kind == "Node", kind
        assert self.nodes is not None
        return self.nodes

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
        """Enqueue the domain, and update which domains use which template name."""
        before = self._template_by_domain.pop(uid, None)
        if before is not None:
            self._domains_by_template[before].discard(uid)
            if not self._domains_by_template[before]:
                del self._domains_by_template[before]
        stored = next(self.domains.objects_of(uid), None)
        if stored is None:
            self._parsed.pop(uid, None)
        else:
            name = _template_key(stored)
            self._template_by_domain[uid] = name
            self._domains_by_template[name].add(uid)
        self._enqueue(uid)

    def _template_changed(self, uid: DomainUID) -> None:
        """Enqueue the domain, and every other domain that waits for the template's name."""
        self._enqueue(uid)
        template = self._template_by_domain.get(uid)
        for other in self._domains_by_template.get(template, ()) if template else ():
            if other != uid:
                self._enqueue(other)


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


def _uid_from_label(obj: JsonObject) -> str:
    return str((obj["metadata"].get("labels") or {}).get(names.DOMAIN_LABEL, ""))


def _uid_from_metadata(obj: JsonObject) -> str:
    return str(obj["metadata"]["uid"])


def _template_key(stored: JsonObject) -> str:
    channel = (stored.get("spec") or {}).get("channel") or {}
    name = (channel.get("resourceClaimTemplate") or {}).get("name", "")
    return f"{stored['metadata']['namespace']}/{name}"


def _is_workload_template(template: Child) -> bool:
    labels = template.object["metadata"].get("labels") or {}
    return bool(labels.get(names.DOMAIN_TARGET_LABEL) != names.TARGET_DAEMON)
