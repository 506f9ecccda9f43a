"""One claim, from start to end: `prepare` and `unprepare`.

The thinking is in `plan`, `membership` and `readiness`; here is the order of things. A channel is
held from the moment its node is to be labelled: whatever happens then, its unprepare takes the
label off again. Source: spec/compute-domain.md §7.7.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from nvdra_api.protocol import configs
from nvdra_api.runtime.plugin.fetching import Claims
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.turns import Tell, Turns
from nvdra_api.runtime.process.locks import Locks
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types import keys, names
from nvdra_api.types.claims import ResourceClaim
from nvdra_api.types.errors import DriverError, Reason
from nvdra_api.types.gates import Gates
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.ids import ClaimUID, DomainUID, NodeName
from nvdra_api.types.prepared import PreparedClaim

from nvdra_cd_plugin import membership, plan, retrying
from nvdra_cd_plugin.cdi_specs import SpecFiles
from nvdra_cd_plugin.channel_claims import Channels, DomainChannels, HostChannels
from nvdra_cd_plugin.daemon_claims import DaemonClaims
from nvdra_cd_plugin.daemon_watch import DaemonWatch
from nvdra_cd_plugin.disk import Disk
from nvdra_cd_plugin.domains import Domains
from nvdra_cd_plugin.joining import Membership
from nvdra_cd_plugin.membership import Domain
from nvdra_cd_plugin.records import DomainHolding
from nvdra_cd_plugin.story import Story


class Preparer:
    """Makes claims' channels usable on this node, gives daemons their place, and takes both back.

    Attributes:
        busy: What is being prepared right now: its files are wanted although no record names them.
    """

    def __init__(
        self,
        node: NodeName,
        gates: Gates,
        claims: Claims,
        domains: Domains,
        held: HeldClaims[DomainHolding],
        turns: Turns,
        telemetry: Telemetry,
        story: Story,
        joining: Membership,
        channels: Channels,
        giving: DomainChannels | HostChannels,
        daemons: DaemonClaims,
        watch: DaemonWatch,
        specs: SpecFiles,
        disk: Disk,
    ) -> None:
        self.busy: dict[ClaimUID, DomainUID] = {}
        self._node = node
        self._gates = gates
        self._claims = claims
        self._domains = domains
        self._held = held
        self._turns = turns
        self._telemetry = telemetry
        self._story = story
        self._joining = joining
        self._channels = channels
        self._giving = giving
        self._daemons = daemons
        self._watch = watch
        self._specs = specs
        self._disk = disk
        self._locks: Locks[str] = Locks()

    async def prepare(self, claim: ResourceClaim, deadline: float, tell: Tell) -> PreparedClaim:
        """Give the claim what it was allocated, as soon as no other claim has it.

        Args:
            claim: As it was read just now.
            deadline: Monotonic seconds; every wait ends by then.
            tell: Called once when it takes long.

        Raises:
            DriverError: A channel may be held, and be waited for again with `repeat`.
        """
        try:
            return await self._take(tell, claim, deadline)
        except DeviceInUseError as error:
            refusal = error
        take = partial(self._take, tell)
        return await self._claims.in_turn(claim, refusal, take, deadline, tell)

    async def _take(self, tell: Tell, claim: ResourceClaim, deadline: float) -> PreparedClaim:
        with self._telemetry.step("resolve config"):
            wanted = self._plan(claim)
        pause = partial(self._turns.pause, wanted.ref)
        with self._telemetry.step("find domain", {keys.DOMAIN_UID: wanted.domain}):
            if not wanted.is_channel:
                await self._daemons.admit(wanted, deadline, pause)
            find = partial(self._domains.find, wanted.domain, wanted.namespace)
            domain = await retrying.until(deadline, find, pause)
        wanted = wanted.of(domain)
        if wanted.is_channel:
            membership.check_namespace(wanted.ref, domain)
        with self._preparing(wanted):
            if not wanted.is_channel:
                with self._watch.starting(wanted):
                    return await self._take_daemon(wanted, claim, domain, deadline)
            if isinstance(self._giving, HostChannels):
                return await self._take_of_host(wanted, domain, deadline, self._giving)
            return await self._join(wanted, domain, deadline, tell, self._giving)

    async def _join(
        self,
        wanted: DomainHolding,
        domain: Domain,
        deadline: float,
        tell: Tell,
        giving: DomainChannels,
    ) -> PreparedClaim:
        """Hold the channel, make the node a member, and wait for its daemon."""
        joining = wanted.model_copy(update={"is_joining": True})
        await self._hold(joining, deadline)
        return await self._give(joining, domain, deadline, tell, giving)

    async def _give(
        self,
        joining: DomainHolding,
        domain: Domain,
        deadline: float,
        tell: Tell | None,
        giving: DomainChannels,
    ) -> PreparedClaim:
        """One attempt at a channel that is held; the first one is the beginning of a membership.

        A node that is another domain's is no member: the channel is let go, and nothing is told.
        """
        joined, began = self._held.since(joining.uid), self._story.now()
        clique, error = joining.clique, None
        try:
            await self._label(joining, domain, deadline, giving)
            given = await giving.give(joining, domain, deadline, tell)
            clique = given.clique
            return await self._commit(given)
        except BaseException as failure:
            error = failure
            raise
        finally:
            if joining.uid in self._held:
                self._story.part("prepare", joining.ref, domain, clique, began, error)
                self._story.member(joining.ref, domain, clique, joined, error)

    async def _label(
        self, joining: DomainHolding, domain: Domain, deadline: float, giving: DomainChannels
    ) -> None:
        try:
            await giving.join(joining, domain, deadline)
        except DriverError as failure:
            if failure.reason is Reason.NODE_IN_OTHER_DOMAIN:
                await self._held.release(joining.uid)  # the node is not labelled for it
                self._joining.left(joining)
            raise

    async def _take_of_host(
        self, wanted: DomainHolding, domain: Domain, deadline: float, giving: HostChannels
    ) -> PreparedClaim:
        self._check(wanted)
        return await self._hold(await giving.give(wanted, domain, deadline), deadline)

    async def _take_daemon(
        self, wanted: DomainHolding, claim: ResourceClaim, domain: Domain, deadline: float
    ) -> PreparedClaim:
        self._check(wanted)
        began = self._story.now()
        tell_part = partial(self._story.part, "prepare", wanted.ref, domain)
        try:
            with self._telemetry.step("write cdi") as span:
                span.link(self._story.link(domain.uid))
                given = await self._daemons.give(wanted, domain, deadline)
            prepared = await self._hold(given, deadline)
        except DriverError as error:
            tell_part(wanted.clique, began, error)
            raise
        self._story.scheduled(claim, domain, given.clique, self._joined(domain), began)
        tell_part(given.clique, began)
        return prepared

    async def repeat(self, holding: DomainHolding, deadline: float) -> PreparedClaim:
        """Answer for a claim we hold as before, after proving that the answer is still true.

        A channel that was given, and a daemon's place, need no API server; a channel that is still
        waited for is waited for again.
        """
        if holding.is_joining:
            pause = partial(self._turns.pause, holding.ref)
            find = partial(self._domains.find, holding.domain, holding.namespace)
            domain = await retrying.until(deadline, find, pause)
            if isinstance(self._giving, HostChannels):
                return await self._commit(await self._giving.give(holding, domain, deadline))
            return await self._give(holding, domain, deadline, None, self._giving)
        with self._telemetry.step("write cdi"):
            if holding.is_channel:
                return (await self._channels.prove(holding, deadline)).answer()
            return (await self._daemons.prove(holding, deadline)).answer()

    async def unprepare(self, holding: DomainHolding, deadline: float) -> None:
        """Take back what the claim holds; the API server is needed for the node's label alone."""
        if holding.is_channel and isinstance(self._giving, DomainChannels):
            with self._telemetry.step("unlabel node", {keys.DOMAIN_UID: holding.domain}):
                await self._joining.leave(holding, deadline)
            self._tell_left(holding)
        await self._disk.run(deadline, self._specs.remove, holding.uid)
        with self._telemetry.step("commit state"):
            await self._held.release(holding.uid)
        self._joining.left(holding)

    def _tell_left(self, holding: DomainHolding) -> None:
        """The channel went; a kill may have ended its only attempt, and told nobody."""
        if not holding.domain:
            return  # of a claim that was gone when its record was made
        if holding.is_joining:
            domain = Domain(holding.domain, holding.domain_namespace, holding.domain_name)
            joined = self._held.since(holding.uid)
            error = asyncio.CancelledError()
            self._story.member(holding.ref, domain, holding.clique, joined, error)
        self._story.left(holding.domain)

    def _plan(self, claim: ResourceClaim) -> DomainHolding:
        driver = names.COMPUTE_DOMAIN_DRIVER
        configured = configs.resolve(claim, driver, plan.kind_of, self._gates)
        is_host_managed = isinstance(self._giving, HostChannels)
        return plan.make(claim, configured, self._node, is_host_managed=is_host_managed)

    def _check(self, wanted: DomainHolding) -> None:
        try:
            plan.check_free(wanted, self._held, self._node)
        except DeviceInUseError as error:
            error.since = self._held.since(error.holder.uid)
            raise
        plan.check_known(wanted, self._held.unreadable.values(), self._held.doubt)

    async def _hold(self, wanted: DomainHolding, deadline: float) -> PreparedClaim:
        """Record the claim if nobody else has its device."""
        places = (wanted.device.device,)
        async with self._locks.hold(places, holder=str(wanted.ref), deadline=deadline):
            self._check(wanted)
            return await self._commit(wanted)

    async def _commit(self, given: DomainHolding) -> PreparedClaim:
        with self._telemetry.step("commit state"):
            await self._held.take(given.ref, given)
        return given.answer()

    def _joined(self, domain: Domain) -> datetime | None:
        """When this node became a member of the domain; None where no channel of it is held."""
        channels = (each for each in self._held.values() if each.is_channel)
        return next((self._held.since(e.uid) for e in channels if e.domain == domain.uid), None)

    @contextmanager
    def _preparing(self, wanted: DomainHolding) -> Iterator[None]:
        self.busy[wanted.uid] = wanted.domain
        try:
            yield
        finally:
            del self.busy[wanted.uid]
