"""Waiting for this node's daemon: one watch of the one object in which it tells of itself.

No lock is held, and nothing is polled: an entry that becomes Ready ends the wait as soon as the API
server says so. Why a daemon says nothing is known here when its own claim was refused, and else
asked of its pod and its DaemonSet, twice at most. An entry that does not name its writer is
compared with the address of the daemon's pod, which may be known a moment later than the entry.
Source: spec/compute-domain.md §14.1 (KW-3, KW-15, KW-16), §14.2 (KW-20); design.md, "Watch, do not
poll".
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final

from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.reflector import Reflector
from nvdra_api.runtime.plugin.turns import Tell, Turns
from nvdra_api.runtime.process.waiting import within
from nvdra_api.runtime.telemetry.active import ActiveSpan
from nvdra_api.types import keys, names
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.domains import ComputeDomain, ComputeDomainClique
from nvdra_api.types.errors import DriverError, Reason, RetryableError
from nvdra_api.types.gates import Feature, Gates
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.ids import ClaimUID, CliqueID, DomainUID, NodeName, PodUID

from nvdra_cd_plugin import domains, readiness
from nvdra_cd_plugin.daemon_lookup import DaemonLookup
from nvdra_cd_plugin.membership import Domain
from nvdra_cd_plugin.readiness import Entry, Found, Own, Refused, Standing
from nvdra_cd_plugin.records import DomainHolding

TELL_S: Final = 15.0
"""How long a wait may last before it is told where users look; most domains have formed by then."""
_LOOK_S: Final = 1.0
"""Before the end of a wait its pod is asked what the daemon lacks."""
_ADDRESS_S: Final = 1.0
"""Between two questions for the address of a pod that has said READY: it is written soon."""
_MOST_REFUSED: Final = 16
"""Domains whose daemons' refusals are remembered; a node works for one at a time."""


class Source:
    """The object that a domain's daemons tell of themselves in, watched by its name."""

    def __init__(
        self,
        api: Client,
        collection: str,
        name: str,
        entries: Callable[[Mapping[str, object]], tuple[Entry, ...]],
        moved: Callable[[], None],
        observe_restart: Callable[[str], None],
    ) -> None:
        async def locate(deadline: float, is_lost: bool) -> str:
            del deadline, is_lost  # there is one version of our own API
            return collection

        self._entries = entries
        self.reflector = Reflector(
            api,
            locate,
            {"fieldSelector": f"metadata.name={name}"},
            observe_restart,
            observe_change=lambda _: moved(),
        )

    def entries(self) -> Iterable[Entry]:
        """What is said there now."""
        for obj in self.reflector.snapshot().values():
            yield from self._entries(obj)


class DaemonWatch:
    """Waits for this node's daemons."""

    def __init__(
        self,
        node: NodeName,
        api: Client,
        managed: Sequence[str],
        gates: Gates,
        held: Mapping[ClaimUID, DomainHolding],
        turns: Turns,
        observe_restart: Callable[[str], None],
    ) -> None:
        """Nothing is watched yet.

        Args:
            node: This node.
            api: The API server.
            managed: Namespaces of daemons.
            gates: They say where daemons tell of themselves, and how IMEX knows its peers.
            held: What is prepared on this node, daemons among it.
            turns: They end a wait that nobody wants any more.
            observe_restart: Told when a watch begins anew.
        """
        self._node = node
        self._api = api
        self._managed = managed
        self._gates = gates
        self._held = held
        self._turns = turns
        self._observe_restart = observe_restart
        self._lookup = DaemonLookup(node, api, managed)
        self._refused: OrderedDict[DomainUID, Refused] = OrderedDict()
        self._waiting: set[asyncio.Event] = set()

    @contextmanager
    def starting(self, daemon: DomainHolding) -> Iterator[None]:
        """Let who waits for a domain's daemon hear how its own claim fares here."""
        self._refused.pop(daemon.domain, None)
        try:
            yield
        except DriverError as error:
            # A place that somebody else has is waited for inside the kubelet's call.
            is_over = not isinstance(error, DeviceInUseError)
            self._refused[daemon.domain] = Refused(daemon.ref, daemon.pods, error, is_over)
            while len(self._refused) > _MOST_REFUSED:
                self._refused.popitem(last=False)
            raise
        finally:
            for moved in self._waiting:
                moved.set()

    async def ready(
        self,
        ref: ClaimRef,
        domain: Domain,
        clique: CliqueID,
        deadline: float,
        span: ActiveSpan,
        tell: Tell | None = None,
    ) -> None:
        """Return as soon as this node's daemon of the domain is ready.

        Args:
            ref: The claim that waits.
            domain: Whose daemon.
            clique: The node's.
            deadline: Monotonic seconds.
            span: Told of peers that are absent.
            tell: Called once when it takes long.

        Raises:
            RetryableError: `DaemonNotReady`, with what it lacks; `ApiUnavailable`. The time is up,
                or nobody wants the claim any more.
        """
        async with self._sources(domain, clique) as (sources, moved):
            refusal = await self._waited(ref, domain, sources, moved, deadline, span, tell)
        # Raised out here: a task group hands on what is raised in its block as a group.
        if refusal is not None:
            raise refusal

    async def _waited(
        self,
        ref: ClaimRef,
        domain: Domain,
        sources: Sequence[Source],
        moved: asyncio.Event,
        deadline: float,
        span: ActiveSpan,
        tell: Tell | None,
    ) -> DriverError | None:
        """None once the daemon is ready; else why the wait is over."""
        clock = asyncio.get_running_loop().time
        moments = (clock() + TELL_S, deadline - _LOOK_S)
        looks = sorted(at for at in moments if clock() < at < deadline)
        again = 0.0
        found: Found | None = None
        heard: Refused | None = None
        seen: tuple[NodeName, ...] | None = None
        while True:
            moved.clear()
            standing = self._standing(sources, domain, found)
            if standing.is_unproved and clock() >= again:
                found = await self._lookup.found(domain.uid) or found
                again = clock() + _ADDRESS_S
                standing = self._standing(sources, domain, found)
            if standing.absent != seen:
                seen = standing.absent
                span.event("peers", {keys.ABSENT_PEERS: seen})
                span.set(keys.ABSENT_PEERS, seen)
            if standing.is_ready:
                return None
            refused = self._refused.get(domain.uid)
            if tell is not None and refused is not None and refused.is_over and refused != heard:
                heard = refused
                found = await self._lookup.found(domain.uid)
                standing = self._standing(sources, domain, found)
                if standing.is_refused and found is not None:
                    tell(self._refusal(sources, domain, standing))  # time brings nothing better
                    tell = None
            span.set(keys.LACKS, standing.lacks)
            refusal = self._refusal(sources, domain, standing)
            due = min([*looks[:1], *([again] if standing.is_unproved else [])], default=None)
            try:
                async with self._turns.until(ref, refusal, deadline):
                    if await within(moved, None if due is None else due - clock()):
                        continue
            except DriverError as over:
                return over
            if not looks or clock() < looks[0]:
                continue
            looks.pop(0)
            found = await self._lookup.found(domain.uid)
            if tell is not None:
                tell(self._refusal(sources, domain, self._standing(sources, domain, found)))
                tell = None

    @asynccontextmanager
    async def _sources(
        self, domain: Domain, clique: CliqueID
    ) -> AsyncIterator[tuple[Sequence[Source], asyncio.Event]]:
        """Watch for the block; what moves sets the event."""
        moved = asyncio.Event()
        self._waiting.add(moved)
        try:
            async with AsyncExitStack() as stack:
                sources = list(self._places(domain, clique, moved.set))
                for source in sources:
                    await stack.enter_async_context(source.reflector.running())
                yield sources, moved
        finally:
            self._waiting.discard(moved)

    def _places(
        self, domain: Domain, clique: CliqueID, moved: Callable[[], None]
    ) -> Iterable[Source]:
        restart = self._observe_restart
        if clique and self._gates.is_on(Feature.CLIQUES):
            name = names.clique_name(domain.uid, clique)
            for namespace in self._managed:
                path = domains.cliques(namespace)
                yield Source(self._api, path, name, _of_clique, moved, restart)
        else:
            path = domains.collection(domain.namespace)
            yield Source(self._api, path, domain.name, _of_status, moved, restart)

    def _standing(self, sources: Sequence[Source], domain: Domain, found: Found | None) -> Standing:
        entries = [entry for source in sources for entry in source.entries()]
        least = 0 if self._gates.is_on(Feature.IMEX_DNS_NAMES) else domain.num_nodes
        pods = () if found is None else found.pods
        ips = {pod.uid: pod.ip for pod in pods if pod.ip}
        standing = readiness.assess(entries, self._node, self._daemon(domain, ips), least)
        refused = self._refused.get(domain.uid)
        return readiness.explained(standing, found, self._node, refused)

    def _daemon(self, domain: Domain, ips: Mapping[PodUID, str]) -> Own | None:
        """The domain's daemon on this node, once its claim is prepared; None without one."""
        for holding in self._held.values():
            if not holding.is_channel and holding.domain == domain.uid:
                return Own(holding.pods, ips)
        return None

    def _refusal(
        self, sources: Sequence[Source], domain: Domain, standing: Standing
    ) -> RetryableError:
        for source in sources:
            if source.reflector.error:
                return RetryableError(
                    Reason.API_UNAVAILABLE,
                    f"how the IMEX daemon of ComputeDomain {domain} on node {self._node} is cannot "
                    f"be read: {source.reflector.error}",
                    "the wait goes on with the kubelet's next call",
                    domain=domain.uid,
                )
        return readiness.refusal(domain, self._node, standing)


def _of_clique(obj: Mapping[str, object]) -> tuple[Entry, ...]:
    return readiness.of_clique(ComputeDomainClique.model_validate(obj))


def _of_status(obj: Mapping[str, object]) -> tuple[Entry, ...]:
    return readiness.of_status(ComputeDomain.model_validate(obj))
