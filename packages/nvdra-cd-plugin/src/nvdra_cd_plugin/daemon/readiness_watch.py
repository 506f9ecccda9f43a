# SPDX-License-Identifier: Apache-2.0
"""Waits until this node's daemon is ready, by a watch of the one object that its entry is in.

No lock is held and nothing is polled: the wait ends as soon as the API server reports an entry that
is Ready. If the daemon has no entry, the reason is the failure of its own claim, which is known
here, or comes from its pod and its DaemonSet, which are read twice at most. An entry that does not
name its writer is compared with the address of the daemon's pod, which may become known a moment
after the entry. A daemon whose entry is Ready may be dead, which `liveness` tells.

Source: docs/reference/compute-domain.md, "Scalability and latency" (KW-3, KW-15, KW-16), "Races and
correctness" (KW-20); docs/design.md, "Watch, do not poll".
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.v1beta1 import ComputeDomain, ComputeDomainClique
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.informer import PROMPT_BACKOFF, Informer, fixed_path
from nvdra_runtime.process.timeouts import wait_for_event
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.active_span import ActiveSpan

from nvdra_cd_plugin.daemon import readiness
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.daemon.liveness import LivenessCheck
from nvdra_cd_plugin.daemon.pod_lookup import DaemonPodLookup
from nvdra_cd_plugin.daemon.readiness import (
    DaemonClaimFailure,
    DaemonEntry,
    DaemonReadiness,
    OwnDaemon,
    PodLookupResult,
)
from nvdra_cd_plugin.domains import lookup
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.node.file_worker import FileWorker

NOTIFY_AFTER_S: Final = 15.0
"""How long a wait may last before the user is notified; most domains have formed by then."""
_LOOKUP_BEFORE_END_S: Final = 1.0
"""How long before the end of a wait the daemon's pod is read."""
_ADDRESS_INTERVAL_S: Final = 1.0
"""Between two reads of a pod whose address is missing. Its daemon is ready, so it comes soon."""
_LIVENESS_INTERVAL_S: Final = 0.25
"""Between two checks whether a daemon whose entry is Ready lives again: nothing reports a lock."""
_MAX_FAILURES: Final = 16
"""For how many domains the failure of the daemon's claim is kept; a node has one at a time."""


class EntrySource:
    """One object with the entries of a domain's daemons, watched by its name."""

    def __init__(
        self,
        api: Client,
        collection: str,
        name: str,
        keep: Callable[[JsonObject], JsonObject],
        parse: Callable[[Mapping[str, object]], tuple[DaemonEntry, ...]],
        on_change: Callable[[], None],
        on_watch_restart: Callable[[str], None],
    ) -> None:
        self._parse = parse
        self.informer = Informer(
            api,
            fixed_path(collection),
            {"fieldSelector": f"metadata.name={name}"},
            on_watch_restart,
            on_change=lambda _: on_change(),
            transform=keep,
            backoff=PROMPT_BACKOFF,
        )

    def entries(self) -> Iterable[DaemonEntry]:
        """The entries that the object has now."""
        for obj in self.informer.snapshot().values():
            yield from self._parse(obj)


class ReadinessWatch:
    """Waits for the daemons of this node."""

    def __init__(
        self,
        node: NodeName,
        api: Client,
        managed: Sequence[str],
        gates: FeatureGates,
        prepared_claims: PreparedClaims[DomainClaimRecord],
        directories: DomainDirectories,
        files: FileWorker,
        waits: DeviceWaitQueue,
        on_watch_restart: Callable[[str], None],
    ) -> None:
        """Create it without any request.

        Args:
            node: This node.
            api: The API server.
            managed: The namespaces in which daemons may be.
            gates: They decide where daemons write their entries, and how IMEX knows its peers, in
                domains that do not say what their daemons were made with.
            prepared_claims: The claims that are prepared on this node, those of daemons included.
            directories: The directories of domains, with the daemons' locks.
            files: The thread for files.
            waits: Ends a wait when the claim is no longer wanted.
            on_watch_restart: Called when a watch starts again.
        """
        self._node = node
        self._api = api
        self._managed = managed
        self._gates = gates
        self._prepared_claims = prepared_claims
        self._waits = waits
        self._on_watch_restart = on_watch_restart
        self._lookup = DaemonPodLookup(node, api, managed)
        self._check_liveness = partial(
            LivenessCheck, directories, files, self._lookup, prepared_claims.is_of_this_boot
        )
        self._failures: OrderedDict[DomainUID, DaemonClaimFailure] = OrderedDict()
        self._waiting: set[asyncio.Event] = set()

    @contextmanager
    def track_daemon_claim(self, daemon: DomainClaimRecord) -> Iterator[None]:
        """Report the result of preparing a daemon's claim in the block to those who wait for it."""
        self._failures.pop(daemon.domain, None)
        try:
            yield
        except DriverError as error:
            # A device that another claim has is waited for inside the kubelet's call.
            is_final = not isinstance(error, DeviceInUseError)
            failure = DaemonClaimFailure(daemon.ref, daemon.pods, error, is_final)
            self._failures[daemon.domain] = failure
            while len(self._failures) > _MAX_FAILURES:
                self._failures.popitem(last=False)
            raise
        finally:
            for changed in self._waiting:
                changed.set()

    async def wait_ready(
        self,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        deadline: float,
        span: ActiveSpan,
        notify: NotifyWaiting | None = None,
    ) -> None:
        """Return as soon as this node's daemon of the domain is ready.

        Args:
            ref: The claim that waits.
            domain: The daemon's domain.
            clique: The node's clique.
            deadline: Monotonic seconds.
            span: Gets an event when the set of absent peers changes.
            notify: Called once if the wait takes long.

        Raises:
            RetryableError: `DaemonNotReady`, with what the daemon lacks; `ApiUnavailable`. The
                deadline has passed, or the claim is no longer wanted. `StateUnavailable`,
                `DeadlineExceeded`: the daemon's lock cannot be read.
        """
        error: DriverError | None = None
        async with self._watch_entries(domain, clique) as (sources, changed):
            try:
                await self._wait(ref, domain, clique, sources, changed, deadline, span, notify)
            except DriverError as over:
                error = over
        # Raised outside the block: the task group in it would wrap the error in a group.
        if error is not None:
            raise error

    async def _wait(
        self,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        sources: Sequence[EntrySource],
        changed: asyncio.Event,
        deadline: float,
        span: ActiveSpan,
        notify: NotifyWaiting | None,
    ) -> None:
        """Wait until the daemon is ready.

        Raises:
            DriverError: As `wait_ready`.
        """
        clock = asyncio.get_running_loop().time
        moments = (clock() + NOTIFY_AFTER_S, deadline - _LOOKUP_BEFORE_END_S)
        lookups_at = sorted(at for at in moments if clock() < at < deadline)
        address_due = 0.0
        found: PodLookupResult | None = None
        notified_failure: DaemonClaimFailure | None = None
        reported_absent: tuple[NodeName, ...] | None = None
        liveness = self._check_liveness(domain.uid)

        async def assess() -> DaemonReadiness:
            return await self._assess(sources, domain, clique, found, liveness, deadline)

        while True:
            changed.clear()
            state = await assess()
            if state.is_unverified and clock() >= address_due:
                found = await self._lookup.find(domain.uid) or found
                address_due = clock() + _ADDRESS_INTERVAL_S
                state = await assess()
            if state.absent_peers != reported_absent:
                reported_absent = state.absent_peers
                span.add_event("peers", {keys.ABSENT_PEERS: reported_absent})
                span.set_attribute(keys.ABSENT_PEERS, reported_absent)
            if state.is_ready:
                return
            failure = self._failures.get(domain.uid)
            is_new_failure = failure is not None and failure.is_final
            if notify is not None and is_new_failure and failure != notified_failure:
                notified_failure = failure
                found = await self._lookup.find(domain.uid)
                state = await assess()
                if state.has_claim_failed and found is not None:
                    notify(self._error(sources, domain, state))  # waiting longer does not help
                    notify = None
            span.set_attribute(keys.LACKS, state.missing)
            error = self._error(sources, domain, state)
            due = lookups_at[:1]
            due += [address_due] if state.is_unverified else []
            due += [clock() + _LIVENESS_INTERVAL_S] if state.is_outdated else []
            async with self._waits.wait_until(ref, error, deadline):
                if await wait_for_event(changed, min(due) - clock() if due else None):
                    continue
            if not lookups_at or clock() < lookups_at[0]:
                continue
            lookups_at.pop(0)
            found = await self._lookup.find(domain.uid)
            if notify is not None:
                notify(self._error(sources, domain, await assess()))
                notify = None

    @asynccontextmanager
    async def _watch_entries(
        self, domain: Domain, clique: CliqueID
    ) -> AsyncIterator[tuple[Sequence[EntrySource], asyncio.Event]]:
        """Watch the domain's entries during the block; a change sets the event."""
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            async with AsyncExitStack() as stack:
                sources = list(self._sources(domain, clique, changed.set))
                for source in sources:
                    await stack.enter_async_context(source.informer.running())
                yield sources, changed
        finally:
            self._waiting.discard(changed)

    def _sources(
        self, domain: Domain, clique: CliqueID, on_change: Callable[[], None]
    ) -> Iterable[EntrySource]:
        on_restart = self._on_watch_restart
        if clique and self._gates_of(domain).is_enabled(Feature.CLIQUES):
            name = names.clique_name(domain.uid, clique)
            for namespace in self._managed:
                path = lookup.cliques_path(namespace)
                yield EntrySource(
                    self._api, path, name, _trim_clique, _parse_clique, on_change, on_restart
                )
        else:
            path = lookup.computedomains_path(domain.namespace)
            yield EntrySource(
                self._api, path, domain.name, _trim_domain, _parse_status, on_change, on_restart
            )

    async def _assess(
        self,
        sources: Sequence[EntrySource],
        domain: Domain,
        clique: CliqueID,
        found: PodLookupResult | None,
        liveness: LivenessCheck,
        deadline: float,
    ) -> DaemonReadiness:
        """The daemon's state by its entry, unless it is dead.

        Raises:
            RetryableError: The daemon's lock cannot be read.
        """
        entries = [entry for source in sources for entry in source.entries()]
        uses_dns_names = self._gates_of(domain).is_enabled(Feature.IMEX_DNS_NAMES)
        min_nodes = 0 if uses_dns_names else domain.num_nodes
        pods = () if found is None else found.pods
        ips = {pod.uid: pod.ip for pod in pods if pod.ip}
        daemon = self._daemon_claim(domain)
        own = None if daemon is None else OwnDaemon(daemon.pods, ips)
        state = readiness.assess(entries, self._node, own, min_nodes)
        if state.is_ready and daemon is not None:
            reason = await liveness.death_reason(daemon, deadline)
            state = readiness.outdated(state, reason) if reason else state
        elif daemon is not None and daemon.clique and daemon.clique != clique:
            state = readiness.in_other_clique(state, daemon.clique, clique)
        failure = self._failures.get(domain.uid)
        return readiness.explain(state, found, self._node, failure, domain.namespace)

    def _gates_of(self, domain: Domain) -> FeatureGates:
        """The gates of the domain's daemons, which may be older than ours."""
        return domain.settings.gates if domain.settings is not None else self._gates

    def _daemon_claim(self, domain: Domain) -> DomainClaimRecord | None:
        """The claim of the domain's daemon on this node; None until it is prepared."""
        claims = (each for each in self._prepared_claims.values() if not each.is_channel)
        return next((each for each in claims if each.domain == domain.uid), None)

    def _error(
        self, sources: Sequence[EntrySource], domain: Domain, state: DaemonReadiness
    ) -> RetryableError:
        for source in sources:
            if source.informer.error:
                return RetryableError(
                    Reason.API_UNAVAILABLE,
                    f"the state of the IMEX daemon of ComputeDomain {domain} on node {self._node} "
                    f"cannot be read: {source.informer.error}",
                    "the kubelet's next call continues the wait",
                    domain=domain.uid,
                )
        return readiness.not_ready_error(domain, self._node, state)


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
