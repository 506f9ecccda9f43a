# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims of channels and of daemons.

A channel of a domain whose daemons this driver runs is recorded at once, because the node is
labelled for it, and joins the domain by a change of the engine. Every other claim is recorded when
it has its device: that of a daemon, and a channel where the host runs IMEX itself.

Source: docs/reference/compute-domain.md, "Prepare and unprepare", "Channel claim", "Daemon claim".
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime

from nvdra_api.ids import ClaimUID, DomainUID, NodeName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims.device_wait_queue import NotifyWaiting
from nvdra_runtime.claims.engine import Engine, NotInForceError
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.process.locks import KeyedLocks

from nvdra_cd_plugin.claims import plan
from nvdra_cd_plugin.claims.changes.join_domain import JoinDomainKind
from nvdra_cd_plugin.claims.claim_admission import ClaimAdmission
from nvdra_cd_plugin.claims.node_readiness import NodeReadiness
from nvdra_cd_plugin.daemon.readiness_watch import ReadinessWatch
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.membership.domain_spans import DomainSpans


class Preparer:
    """A `nvdra_runtime.claims.service.Preparer` for one node.

    Attributes:
        in_progress: The claims that are being prepared, with their domains. Their files must stay
            although no record names them yet.
    """

    def __init__(
        self,
        node: NodeName,
        prepared_claims: PreparedClaims[DomainClaimRecord],
        admission: ClaimAdmission,
        readiness: NodeReadiness,
        engine: Engine[DomainClaimRecord],
        join: JoinDomainKind | None,
        daemons: ReadinessWatch,
        spans: DomainSpans,
    ) -> None:
        """Create it.

        Args:
            node: This node.
            prepared_claims: The records.
            admission: Plans and admits claims.
            readiness: What claims wait for that join no domain.
            engine: Records claims, and writes their files.
            join: The change of channels; None where the host runs IMEX.
            daemons: Learns why a daemon's claim failed.
            spans: The traces of domains.
        """
        self.in_progress: dict[ClaimUID, DomainUID] = {}
        self._node = node
        self._prepared_claims = prepared_claims
        self._admission = admission
        self._readiness = readiness
        self._engine = engine
        self._join = join
        self._daemons = daemons
        self._spans = spans
        self._locks: KeyedLocks[str] = KeyedLocks()

    async def prepare(
        self, claim: ResourceClaim, deadline: float, notify: NotifyWaiting
    ) -> PrepareResult:
        """Make one attempt to give the claim its device.

        Args:
            claim: The claim as it was read just now.
            deadline: Monotonic seconds; every wait ends by then.
            notify: Called once if the wait takes long.

        Raises:
            DeviceInUseError: Another claim has the device; the caller waits and tries again.
            DriverError: A channel's claim may be recorded nevertheless; `prepare_again` continues.
        """
        record = self._admission.plan(claim)
        with self._mark_in_progress(record):
            domain = await self._admission.admit(record, deadline)
            record = record.with_domain(domain)
            if not record.is_channel:
                done = await self._give_daemon(claim, record, deadline)
            elif self._join is None:
                self._check_free(record)
                done = await self._give(record, deadline)
            else:
                joining = self._with_change(record.model_copy(update={"is_joining": True}))
                async with self._reserved(joining, deadline):
                    await self._engine.commit(joining)
                with self._join.attempt(joining, domain, deadline, notify):
                    done = await self._restored(joining, deadline)
        return done.prepare_result()

    async def prepare_again(self, record: DomainClaimRecord, deadline: float) -> PrepareResult:
        """Return the same result as before, after checking that its files are in place.

        A claim that was given its device in this boot needs neither the API server nor the fabric.
        In another boot its daemon or the host's IMEX ended with everything else: a channel joins
        anew, and a record is written again with the clique of this boot, as the node may be in
        another rack. So is one that waits for a daemon although the host runs IMEX now.

        Raises:
            DriverError: As `prepare`.
        """
        current = self._with_change(record)
        if self._is_complete(record):
            done = await self._engine.restore(current)
        elif record.is_channel and self._join is not None:
            domain = await self._admission.find(record, deadline)
            current = current.with_domain(domain)
            with self._join.attempt(current, domain, deadline):
                done = await self._restored(current, deadline)
        else:
            if record.is_channel:
                await self._admission.find(record, deadline)  # the domain may be gone
            done = await self._engine.commit(await self._readiness.wait(record, deadline))
        return done.prepare_result()

    async def unprepare(self, record: DomainClaimRecord, deadline: float) -> None:
        """Take back what the claim got, and remove its record.

        Raises:
            DriverError: The claim stays recorded.
        """
        current = self._with_change(record)
        if self._join is None:
            await self._engine.release(current, may_use_devices=True)
        else:
            with self._join.leaving(current, deadline):
                await self._engine.release(current, may_use_devices=True)

    def _is_complete(self, record: DomainClaimRecord) -> bool:
        """Whether the claim was given its device since the node was booted."""
        return not record.is_joining and self._prepared_claims.is_of_this_boot(record.uid)

    def _with_change(self, record: DomainClaimRecord) -> DomainClaimRecord:
        if not record.is_channel or self._join is None:
            return record
        boot = self._prepared_claims.boot_id
        return record.with_join(boot, has_joined=self._is_complete(record))

    def _check_free(self, record: DomainClaimRecord) -> None:
        """Refuse a device that another claim has, or that another claim may have.

        Raises:
            DeviceInUseError: Another claim has the device.
            PermanentError: `StateCorrupt`: it is unknown whether another claim has it.
        """
        prepared = self._prepared_claims
        try:
            plan.check_free(record, prepared, self._node)
        except DeviceInUseError as error:
            error.since = prepared.held_since(error.holder.uid)
            raise
        unreadable = prepared.unreadable.values()
        plan.check_records_complete(record, unreadable, prepared.incomplete_reason)

    @asynccontextmanager
    async def _reserved(self, record: DomainClaimRecord, deadline: float) -> AsyncIterator[None]:
        """Keep the claim's device, which is free, from other claims while the block records it."""
        devices = (record.device.device,)
        async with self._locks.hold(devices, holder=str(record.ref), deadline=deadline):
            self._check_free(record)
            yield

    async def _restored(self, record: DomainClaimRecord, deadline: float) -> DomainClaimRecord:
        """The record when the node has joined the claim's domain. No lock is held."""
        while True:
            try:
                return await self._engine.restore(record)
            except NotInForceError as waiting:
                await self._engine.wait_in_force(waiting, deadline)

    async def _give(self, record: DomainClaimRecord, deadline: float) -> DomainClaimRecord:
        """Record a claim that joins no domain, as soon as it has its device, which is free."""
        ready = await self._readiness.wait(record, deadline)
        async with self._reserved(ready, deadline):
            return await self._engine.commit(ready)

    async def _give_daemon(
        self, claim: ResourceClaim, record: DomainClaimRecord, deadline: float
    ) -> DomainClaimRecord:
        """Record the claim of a daemon, and report it in the domain's trace and to its workload."""
        with self._daemons.track_daemon_claim(record):
            self._check_free(record)
            with self._spans.operation("prepare", record) as shown:
                done = await self._give(record, deadline)
                shown.clique = done.clique
                self._spans.emit_schedule_daemon(claim, done, shown, self._joined_at(done))
        return done

    def _joined_at(self, daemon: DomainClaimRecord) -> datetime | None:
        """When this node became a member of the daemon's domain; None without a channel of it."""
        channels = (record for record in self._prepared_claims.values() if record.is_channel)
        first = next((channel for channel in channels if channel.domain == daemon.domain), None)
        return None if first is None else self._prepared_claims.prepared_at(first.uid)

    @contextmanager
    def _mark_in_progress(self, record: DomainClaimRecord) -> Iterator[None]:
        self.in_progress[record.uid] = record.domain
        try:
            yield
        finally:
            del self.in_progress[record.uid]
