"""What is watched: one reflector a type, and by UID of the domain whatever carries it.

An index follows every change, our own writes included, so that a look at one domain costs what that
domain has, however many there are. Source: spec/compute-domain.md §6.4, §14.1 (KW-1, KW-8).
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from nvdra_api.protocol import apiversions, daemon_pods
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.reflector import Reflector
from nvdra_api.types import names
from nvdra_api.types.domains import ComputeDomain, ComputeDomainClique
from nvdra_api.types.ids import DomainUID, NodeName

from nvdra_cd_controller.view import Child, View

Touched = Callable[[DomainUID], None]

_API: Final = f"/apis/{names.CONFIG_API_VERSION}"
_LABELLED: Final = {"labelSelector": names.DOMAIN_LABEL}
_UNREAD: Final = frozenset({"managedFields"})
"""A third of an object's size, for nobody here."""


def domains_path(namespace: str = "", name: str = "") -> str:
    """Path of the ComputeDomains of all namespaces, or of one."""
    return f"{_API}/namespaces/{namespace}/computedomains/{name}" if name else _DOMAINS


def cliques_path(namespace: str, name: str = "") -> str:
    """Path of the cliques of a namespace, or of one."""
    return f"{_API}/namespaces/{namespace}/computedomaincliques" + (f"/{name}" if name else "")


def daemonsets_path(namespace: str, name: str = "") -> str:
    """Path of the DaemonSets of a namespace, or of one."""
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets" + (f"/{name}" if name else "")


_DOMAINS: Final = f"{_API}/computedomains"


class Source:
    """One collection that is watched, and the keys of its objects by UID of the domain."""

    def __init__(
        self,
        api: Client,
        locate: Callable[[float, bool], Awaitable[str]],
        params: Mapping[str, str],
        touched: Touched,
        observe_restart: Callable[[str], None],
        *,
        uid_of: Callable[[JsonObject], str],
        trim: Callable[[JsonObject], JsonObject],
    ) -> None:
        self._uid_of = uid_of
        self._touched = touched
        self._uids: dict[str, DomainUID] = {}
        self._keys: dict[DomainUID, set[str]] = defaultdict(set)
        self.reflector = Reflector(
            api, locate, params, observe_restart, observe_change=self._moved, trim=trim
        )

    def of(self, uid: DomainUID) -> Iterator[JsonObject]:
        """The objects of one domain, by key."""
        for key in sorted(self._keys.get(uid, ())):
            obj = self.reflector.get(key)
            if obj is not None:
                yield obj

    def uids(self) -> set[DomainUID]:
        """The domains that have any."""
        return set(self._keys)

    def _moved(self, keys: frozenset[str]) -> None:
        touched: set[DomainUID] = set()
        for key in keys:
            before = self._uids.pop(key, None)
            if before is not None:
                touched.add(before)
                self._keys[before].discard(key)
                if not self._keys[before]:
                    del self._keys[before]
            obj = self.reflector.get(key)
            uid = DomainUID("" if obj is None else self._uid_of(obj))
            if uid:
                self._uids[key] = uid
                self._keys[uid].add(key)
                touched.add(uid)
        for uid in touched:
            self._touched(uid)


class Cluster:
    """Everything the controller knows of the API server; made by `watched`.

    Attributes:
        domains: All ComputeDomains.
        templates: Claim templates of ours, in all namespaces.
        daemonsets: One source a managed namespace, by name of it.
        cliques: Likewise.
        pods: Likewise.
        nodes: Those that carry a domain's label.
    """

    def __init__(
        self,
        api: Client,
        namespaces: Sequence[str],
        touched: Touched,
        observe_restart: Callable[[str], None],
        *,
        is_host_managed: bool,
    ) -> None:
        self._api = api
        self._touched = touched
        self._wanting: dict[str, set[DomainUID]] = defaultdict(set)
        self._wanted: dict[DomainUID, str] = {}
        self._version = ""
        self._parsed: dict[DomainUID, tuple[JsonObject, ComputeDomain]] = {}

        def source(
            locate: Callable[[float, bool], Awaitable[str]],
            params: Mapping[str, str] = _LABELLED,
            uid_of: Callable[[JsonObject], str] = _labelled,
            trim: Callable[[JsonObject], JsonObject] = _trimmed,
            touched: Touched = touched,
        ) -> Source:
            return Source(api, locate, params, touched, observe_restart, uid_of=uid_of, trim=trim)

        self.domains = source(_at(_DOMAINS), {}, _own_uid, touched=self._domain_touched)
        self.templates = source(self._templates_path, touched=self._template_touched)
        daemons = () if is_host_managed else namespaces
        self.daemonsets = {name: source(_at(daemonsets_path(name))) for name in daemons}
        self.cliques = {name: source(_at(cliques_path(name))) for name in daemons}
        self.pods = {
            name: source(_at(f"/api/v1/namespaces/{name}/pods"), trim=_trimmed_pod)
            for name in daemons
        }
        self.nodes = None if is_host_managed else source(_at("/api/v1/nodes"), trim=_bare)

    def sources(self) -> Iterator[Source]:
        """All that is watched."""
        yield self.domains
        yield self.templates
        yield from self.daemonsets.values()
        yield from self.cliques.values()
        yield from self.pods.values()
        if self.nodes is not None:
            yield self.nodes

    @property
    def problem(self) -> str:
        """Why we may not know how things are; empty while all is well."""
        for source in self.sources():
            if source.reflector.error:
                return source.reflector.error
        is_synced = all(source.reflector.is_synced for source in self.sources())
        return "" if is_synced else "not everything has been listed yet"

    @asynccontextmanager
    async def watched(self) -> AsyncIterator["Cluster"]:
        """Watch for the block; `synced` says when everything has been listed."""
        async with AsyncExitStack() as stack:
            for source in self.sources():
                await stack.enter_async_context(source.reflector.running())
            yield self

    async def synced(self) -> None:
        """Wait until everything has been listed: before that, what is missing may be there."""
        for source in self.sources():
            await source.reflector.synced()

    def all_domains(self) -> Iterator[ComputeDomain]:
        """Every domain, by UID."""
        for uid in sorted(self.domains.uids()):
            for stored in self.domains.of(uid):
                yield self._domain(uid, stored)

    def view(self, uid: DomainUID) -> View:
        """Everything that carries a domain's UID, as it is now.

        Templates of other namespaces do not count: whoever can make one there could label it with
        somebody else's UID, and keep that domain from going with a finalizer.
        """
        stored = next(self.domains.of(uid), None)
        home = stored["metadata"]["namespace"] if stored else ""
        templates = [self._template(each) for each in self.templates.of(uid)]
        return View(
            uid=uid,
            domain=None if stored is None else self._domain(uid, stored),
            stored=stored or {},
            daemonsets=tuple(
                Child("DaemonSet", each) for s in self.daemonsets.values() for each in s.of(uid)
            ),
            daemon_templates=tuple(
                t for t in templates if not _is_workloads(t) and t.namespace in self.daemonsets
            ),
            workload_templates=tuple(
                t for t in templates if _is_workloads(t) and home in ("", t.namespace)
            ),
            cliques=tuple(
                ComputeDomainClique.model_validate(each)
                for source in self.cliques.values()
                for each in source.of(uid)
            ),
            pods=tuple(daemon_pods.read(each) for s in self.pods.values() for each in s.of(uid)),
            nodes=tuple(
                NodeName(each["metadata"]["name"])
                for each in (self.nodes.of(uid) if self.nodes else ())
            ),
        )

    def uids(self) -> set[DomainUID]:
        """All domains, and whatever else has left something behind."""
        return {uid for source in self.sources() for uid in source.uids()}

    def wrote(self, obj: JsonObject) -> None:
        """Count a write of our own at once; one that let the object go counts as its end."""
        source = self._source(obj)
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            source.reflector.deleted(obj)
        else:
            source.reflector.wrote(obj)

    def gone(self, obj: JsonObject) -> None:
        """Count the end of an object at once."""
        self._source(obj).reflector.deleted(obj)

    def _source(self, obj: JsonObject) -> Source:
        kind, namespace = obj["kind"], obj["metadata"].get("namespace", "")
        if kind == names.DOMAIN_KIND:
            return self.domains
        if kind == "ResourceClaimTemplate":
            return self.templates
        by_kind = {"DaemonSet": self.daemonsets, names.CLIQUE_KIND: self.cliques}
        if kind in by_kind:
            return by_kind[kind][namespace]
        assert kind == "Node", kind
        assert self.nodes is not None
        return self.nodes

    def _domain(self, uid: DomainUID, stored: JsonObject) -> ComputeDomain:
        known = self._parsed.get(uid)
        if known is None or known[0] is not stored:
            known = self._parsed[uid] = (stored, ComputeDomain.model_validate(stored))
        return known[1]

    async def _templates_path(self, deadline: float, is_lost: bool) -> str:
        stale = await self._api.resource_version(deadline) if is_lost else ""
        self._version = await self._api.resource_version(deadline, stale=stale)
        return apiversions.templates_path(self._version)

    def _template(self, obj: JsonObject) -> Child:
        return Child("ResourceClaimTemplate", apiversions.template_from(self._version, obj))

    def _domain_touched(self, uid: DomainUID) -> None:
        """Keep who wants which name of a template, beside telling of the domain."""
        before = self._wanted.pop(uid, None)
        if before is not None:
            self._wanting[before].discard(uid)
            if not self._wanting[before]:
                del self._wanting[before]
        stored = next(self.domains.of(uid), None)
        if stored is None:
            self._parsed.pop(uid, None)
        else:
            name = _wanted_name(stored)
            self._wanted[uid] = name
            self._wanting[name].add(uid)
        self._touched(uid)

    def _template_touched(self, uid: DomainUID) -> None:
        """A template of one domain may have been what another one waits for."""
        self._touched(uid)
        wanted = self._wanted.get(uid)
        for other in self._wanting.get(wanted, ()) if wanted else ():
            if other != uid:
                self._touched(other)


def _at(path: str) -> Callable[[float, bool], Awaitable[str]]:
    async def locate(deadline: float, is_lost: bool) -> str:
        del deadline, is_lost
        return path

    return locate


def _labelled(obj: JsonObject) -> str:
    return str((obj["metadata"].get("labels") or {}).get(names.DOMAIN_LABEL, ""))


def _own_uid(obj: JsonObject) -> str:
    return str(obj["metadata"]["uid"])


def _wanted_name(stored: JsonObject) -> str:
    channel = (stored.get("spec") or {}).get("channel") or {}
    name = (channel.get("resourceClaimTemplate") or {}).get("name", "")
    return f"{stored['metadata']['namespace']}/{name}"


def _is_workloads(template: Child) -> bool:
    labels = template.object["metadata"].get("labels") or {}
    return bool(labels.get(names.DOMAIN_TARGET_LABEL) != names.TARGET_DAEMON)


def _trimmed(obj: JsonObject) -> JsonObject:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _UNREAD}
    return {**obj, "metadata": metadata}


def _bare(obj: JsonObject) -> JsonObject:
    """Of a node nothing but its metadata matters here; its status changes all the time."""
    trimmed = _trimmed(obj)
    return {key: trimmed[key] for key in ("apiVersion", "kind", "metadata") if key in trimmed}


def _trimmed_pod(obj: JsonObject) -> JsonObject:
    """What `daemon_pods.read` looks at."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    kept = {key: spec[key] for key in ("nodeName", "affinity", "containers") if key in spec}
    said = ("phase", "podIP", "conditions", "containerStatuses")
    return {
        **_bare(obj),
        "spec": kept,
        "status": {key: status[key] for key in said if key in status},
    }
