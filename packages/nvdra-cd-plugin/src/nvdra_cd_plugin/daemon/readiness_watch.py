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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
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
from nvdra_cd_plugin.daemon.liveness import LivenessCheck
from nvdra_cd_plugin.daemon.pod_lookup import DaemonPodLookup
from nvdra_cd_plugin.daemon.readiness import (
    DaemonClaimFailure,
    DaemonEntry,
    DaemonReadiness,
    OwnDaemon,
    PodLookupResult,
    Step,
    WaitProgress,
)
from nvdra_cd_plugin.domains import lookup
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain

_MAX_FAILURES: Final = 16
"""For how many domains the failure of the daemon's claim is kept; a node has one at a time."""


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


class ReadinessWatch:
    """Waits for the daemons of this node."""

    def __init__(
        self,
        node: NodeName,
        entries: DomainEntries,
        prepared_claims: PreparedClaims[DomainClaimRecord],
        pods: DaemonPodLookup,
        check_liveness: Callable[[DomainUID], LivenessCheck],
        waits: DeviceWaitQueue,
    ) -> None:
        """Create it without any request.

        Args:
            node: This node.
            entries: Watches the entries of daemons.
            prepared_claims: The claims that are prepared on this node, those of daemons included.
            pods: Reads the pods of daemons.
            check_liveness: Returns the check of a domain's daemon, for one wait.
            waits: Ends a wait when the claim is no longer wanted.
        """
        self._node = node
        self._entries = entries
        self._prepared_claims = prepared_claims
        self._pods = pods
        self._check_liveness = check_liveness
        self._waits = waits
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
        async with self._entries.watching(domain, clique) as watched:
            self._waiting.add(watched.changed)
            try:
                await self._wait(ref, watched, deadline, span, notify)
            except DriverError as over:
                error = over
            finally:
                self._waiting.discard(watched.changed)
        # Raised outside the block: the task group in it would wrap the error in a group.
        if error is not None:
            raise error

    async def _wait(
        self,
        ref: ClaimRef,
        watched: WatchedEntries,
        deadline: float,
        span: ActiveSpan,
        notify: NotifyWaiting | None,
    ) -> None:
        """Wait until the daemon is ready: `WaitProgress` decides what is next.

        Raises:
            DriverError: As `wait_ready`.
        """
        clock, uid = asyncio.get_running_loop().time, watched.domain.uid
        progress = WaitProgress.of(clock(), deadline, may_notify=notify is not None)
        liveness = self._check_liveness(uid)
        found: PodLookupResult | None = None
        reported_absent: tuple[NodeName, ...] | None = None
        while True:
            watched.changed.clear()
            state = await self._assess(watched, found, liveness, deadline)
            if state.absent_peers != reported_absent:
                reported_absent = state.absent_peers
                span.add_event("peers", {keys.ABSENT_PEERS: reported_absent})
                span.set_attribute(keys.ABSENT_PEERS, reported_absent)
            step, progress = progress.next(state, self._failures.get(uid), clock())
            if step is Step.GIVE:
                return
            if step is Step.WAIT:
                span.set_attribute(keys.LACKS, state.missing)
                due = progress.due(state, clock())
                timeout_s = None if due is None else due - clock()
                async with self._waits.wait_until(ref, self._error(watched, state), deadline):
                    await wait_for_event(watched.changed, timeout_s)
                continue
            looked_up = await self._pods.find(uid)
            found = looked_up or found if step is Step.READ_ADDRESS else looked_up
            if step is Step.READ_ADDRESS or notify is None or not progress.may_notify:
                continue
            state = await self._assess(watched, found, liveness, deadline)
            if step is Step.TELL_WAIT or (state.has_claim_failed and found is not None):
                notify(self._error(watched, state))
                progress = replace(progress, may_notify=False)

    async def _assess(
        self,
        watched: WatchedEntries,
        found: PodLookupResult | None,
        liveness: LivenessCheck,
        deadline: float,
    ) -> DaemonReadiness:
        """The daemon's state by its entry, unless it is dead.

        Raises:
            RetryableError: The daemon's lock cannot be read.
        """
        domain, clique = watched.domain, watched.clique
        pods = () if found is None else found.pods
        ips = {pod.uid: pod.ip for pod in pods if pod.ip}
        daemon = self._daemon_claim(domain)
        own = None if daemon is None else OwnDaemon(daemon.pods, ips)
        min_nodes = self._entries.min_nodes(domain)
        state = readiness.assess(watched.entries(), self._node, own, min_nodes)
        if state.is_ready and daemon is not None:
            reason = await liveness.death_reason(daemon, deadline)
            state = readiness.outdated(state, reason) if reason else state
        elif daemon is not None and daemon.clique and daemon.clique != clique:
            state = readiness.in_other_clique(state, daemon.clique, clique)
        failure = self._failures.get(domain.uid)
        return readiness.explain(state, found, self._node, failure, domain.namespace)

    def _daemon_claim(self, domain: Domain) -> DomainClaimRecord | None:
        """The claim of the domain's daemon on this node; None until it is prepared."""
        claims = (record for record in self._prepared_claims.values() if not record.is_channel)
        return next((claim for claim in claims if claim.domain == domain.uid), None)

    def _error(self, watched: WatchedEntries, state: DaemonReadiness) -> RetryableError:
        domain, problem = watched.domain, watched.problem
        if problem:
            return RetryableError(
                Reason.API_UNAVAILABLE,
                f"the state of the IMEX daemon of ComputeDomain {domain} on node {self._node} "
                f"cannot be read: {problem}",
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
