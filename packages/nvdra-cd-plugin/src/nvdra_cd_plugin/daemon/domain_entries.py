# SPDX-License-Identifier: Apache-2.0
"""Watches the one object that a domain's daemons write their entries to, in their clique or domain.

Source: docs/reference/compute-domain.md, "Scalability and latency" (KW-3, KW-15, KW-16).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from nvdra_api import names
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import CliqueID
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.informer import PROMPT_BACKOFF, Informer, fixed_path

from nvdra_cd_plugin.daemon import readiness
from nvdra_cd_plugin.daemon.readiness import DaemonEntry
from nvdra_cd_plugin.domains import lookup
from nvdra_cd_plugin.domains.domain import Domain

_Parse = Callable[[Mapping[str, object]], tuple[DaemonEntry, ...]]
_Source = tuple[Informer, _Parse]
"""One object with entries, watched by its name, and how its entries are read."""


class WatchedEntries:
    """The entries of one domain's daemons, while they are watched.

    Attributes:
        domain: The domain.
        clique: The clique of this node, whose entries are watched.
        changed: Set when they may have changed.
    """

    def __init__(
        self,
        domain: Domain,
        clique: CliqueID,
        changed: asyncio.Event,
        sources: Sequence[_Source],
    ) -> None:
        self.domain = domain
        self.clique = clique
        self.changed = changed
        self._sources = sources

    def entries(self) -> list[DaemonEntry]:
        """The entries that are known now."""
        return [
            entry
            for informer, parse in self._sources
            for obj in informer.snapshot().values()
            for entry in parse(obj)
        ]

    @property
    def problem(self) -> str:
        """Why they cannot be read at present; empty if they can."""
        return next((informer.error for informer, _ in self._sources if informer.error), "")


class DomainEntries:
    """Watches the entries of domains' daemons in this node's clique, or on all their nodes."""

    def __init__(
        self,
        api: Client,
        managed: Sequence[str],
        gates: FeatureGates,
        on_watch_restart: Callable[[str], None],
    ) -> None:
        """Create it without any request.

        Args:
            api: The API server.
            managed: The namespaces in which daemons may be.
            gates: They decide where daemons write their entries, and how IMEX knows its peers, in
                domains that do not say what their daemons were made with.
            on_watch_restart: Called when a watch starts again.
        """
        self._api = api
        self._managed = managed
        self._gates = gates
        self._on_watch_restart = on_watch_restart

    def min_nodes(self, domain: Domain) -> int:
        """How many nodes must have joined the domain before a channel is given."""
        return 0 if self._is_enabled(Feature.IMEX_DNS_NAMES, domain) else domain.num_nodes

    @asynccontextmanager
    async def watching(self, domain: Domain, clique: CliqueID) -> AsyncIterator[WatchedEntries]:
        """Watch the domain's entries during the block."""
        changed = asyncio.Event()
        async with AsyncExitStack() as stack:
            sources = list(self._sources(domain, clique, changed))
            for informer, _ in sources:
                await stack.enter_async_context(informer.running())
            yield WatchedEntries(domain, clique, changed, sources)

    def _sources(
        self, domain: Domain, clique: CliqueID, changed: asyncio.Event
    ) -> Iterator[_Source]:
        if clique and self._is_enabled(Feature.CLIQUES, domain):
            name = names.clique_name(domain.uid, clique)
            for namespace in self._managed:
                path = lookup.cliques_path(namespace)
                yield self._informer(path, name, _trim_clique, changed), _parse_clique
        else:
            path = lookup.computedomains_path(domain.namespace)
            yield self._informer(path, domain.name, _trim_domain, changed), _parse_status

    def _informer(
        self,
        path: str,
        name: str,
        keep: Callable[[JsonObject], JsonObject],
        changed: asyncio.Event,
    ) -> Informer:
        return Informer(
            self._api,
            fixed_path(path),
            {"fieldSelector": f"metadata.name={name}"},
            self._on_watch_restart,
            on_change=lambda _: changed.set(),
            transform=keep,
            backoff=PROMPT_BACKOFF,
        )

    def _is_enabled(self, feature: Feature, domain: Domain) -> bool:
        """Whether the domain's daemons, which may be older than ours, have the feature."""
        gates = self._gates if domain.settings is None else domain.settings.gates
        return gates.is_enabled(feature)


def _identity(obj: JsonObject) -> JsonObject:
    keys = ("name", "namespace", "uid", "resourceVersion")
    return {key: obj["metadata"][key] for key in keys if key in obj["metadata"]}


def _trim_clique(obj: JsonObject) -> JsonObject:
    """The entries alone: a user's annotations may be long."""
    return {"metadata": _identity(obj), "daemons": obj.get("daemons") or []}


def _trim_domain(obj: JsonObject) -> JsonObject:
    nodes = (obj.get("status") or {}).get("nodes") or []
    return {"metadata": _identity(obj), "spec": {}, "status": {"nodes": nodes}}


def _parse_clique(obj: Mapping[str, object]) -> tuple[DaemonEntry, ...]:
    return readiness.clique_entries(ComputeDomainClique.model_validate(obj))


def _parse_status(obj: Mapping[str, object]) -> tuple[DaemonEntry, ...]:
    return readiness.status_entries(ComputeDomain.model_validate(obj))
