# SPDX-License-Identifier: Apache-2.0
"""Claims for a channel of a ComputeDomain whose IMEX daemons this driver runs.

The claim is recorded before the node is labelled: whatever happens after that, its unprepare
removes the label. The label starts the domain's daemon on this node, and the claim gets its
channels as soon as that daemon is ready.

Source: docs/reference/compute-domain.md, "Prepare and unprepare", "Channel claim", "Security"
(KW-52).
"""

import asyncio

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import CliqueID
from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.cdi.channel_specs import ChannelSpecs
from nvdra_cd_plugin.claims.record_writer import RecordWriter
from nvdra_cd_plugin.daemon.readiness_watch import ReadinessWatch
from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.domains.lookup import DomainLookup
from nvdra_cd_plugin.fabric.monitor import FabricMonitor
from nvdra_cd_plugin.membership.domain_spans import DomainSpans
from nvdra_cd_plugin.membership.node_membership import NodeMembership


class DomainChannelStrategy:
    """Implements `ClaimStrategy` for channels of domains with daemons."""

    def __init__(
        self,
        domains: DomainLookup,
        records: RecordWriter,
        membership: NodeMembership,
        fabric: FabricMonitor,
        readiness: ReadinessWatch,
        specs: ChannelSpecs,
        waits: DeviceWaitQueue,
        spans: DomainSpans,
        telemetry: Telemetry,
    ) -> None:
        self._domains = domains
        self._records = records
        self._membership = membership
        self._fabric = fabric
        self._readiness = readiness
        self._specs = specs
        self._waits = waits
        self._spans = spans
        self._telemetry = telemetry

    async def prepare(
        self,
        claim: ResourceClaim,
        record: DomainClaimRecord,
        deadline: float,
        notify: NotifyWaiting,
    ) -> PrepareResult:
        """Record the claim, label the node, wait for the daemon, and write the channels.

        Raises:
            DriverError: The claim may be recorded nevertheless; then `prepare_again` waits again.
        """
        del claim  # the record has everything
        with self._telemetry.step("find domain", {keys.DOMAIN_UID: record.domain}):
            domain = await self._domains.find_for_claim(record, deadline)
        admission.check_channel_namespace(record.ref, domain)
        joining = record.with_domain(domain).model_copy(update={"is_joining": True})
        await self._records.add_if_free(joining, deadline)
        return await self._join(joining, domain, deadline, notify)

    async def prepare_again(self, record: DomainClaimRecord, deadline: float) -> PrepareResult:
        """Wait for the daemon again, or restore the channels that the claim has.

        A claim that has its channels needs no API server, unless the node was booted since: then
        its daemon ended with everything else, and the claim joins anew.

        Raises:
            DriverError: As `prepare`.
        """
        if record.is_joining or not self._records.is_of_this_boot(record):
            domain = await self._domains.find_for_claim(record, deadline)
            return await self._join(record, domain, deadline, None)
        with self._telemetry.step("write cdi"):
            return (await self._specs.restore(record, deadline)).prepare_result()

    async def unprepare(self, record: DomainClaimRecord, deadline: float) -> None:
        """Remove the node's label with the domain's last channel, then the spec and the record.

        The API server is needed for the label only.

        Raises:
            DriverError: The claim stays recorded.
        """
        with self._telemetry.step("unlabel node", {keys.DOMAIN_UID: record.domain}):
            await self._membership.leave(record, deadline)
        self._report_left(record)
        await self._records.remove(record, deadline)
        self._membership.forget(record)

    async def _join(
        self,
        record: DomainClaimRecord,
        domain: Domain,
        deadline: float,
        notify: NotifyWaiting | None,
    ) -> PrepareResult:
        """Make one attempt at a channel of a recorded claim, and report it in the domain's trace.

        A node that is labelled for another domain has no part in this one: the record is removed,
        and nothing is reported.
        """
        started_at = self._spans.now()
        joined_at = self._records.recorded_at(record) if record.is_joining else started_at
        clique: CliqueID = record.clique
        error: BaseException | None = None
        try:
            await self._label_node(record, domain, deadline)
            completed = await self._wait_and_write(record, domain, deadline, notify)
            clique = completed.clique
            return await self._records.add(completed)
        except BaseException as failure:
            error = failure
            raise
        finally:
            if self._records.is_recorded(record):
                self._spans.emit_operation("prepare", record.ref, domain, clique, started_at, error)
                self._spans.emit_member(record.ref, domain, clique, joined_at, error)

    async def _label_node(self, record: DomainClaimRecord, domain: Domain, deadline: float) -> None:
        """Label the node, which starts the domain's daemon here.

        Raises:
            RetryableError: `NodeInOtherDomain`: the record of a claim that was never given its
                channel is removed; for one that was, `label_watch` corrects the label.
                `ApiUnavailable`.
        """
        started_at = self._spans.now()
        try:
            with self._telemetry.step("label node", {keys.DOMAIN_UID: record.domain}):
                is_new = await self._membership.join(record, deadline)
        except DriverError as error:
            if error.reason is Reason.NODE_IN_OTHER_DOMAIN:
                if record.is_joining:
                    await self._records.drop(record)
                self._membership.forget(record)
            else:
                self._spans.emit_operation(
                    "label node", record.ref, domain, record.clique, started_at, error
                )
            raise
        if is_new:
            self._spans.emit_operation("label node", record.ref, domain, record.clique, started_at)

    async def _wait_and_write(
        self,
        record: DomainClaimRecord,
        domain: Domain,
        deadline: float,
        notify: NotifyWaiting | None,
    ) -> DomainClaimRecord:
        """Wait for this node's daemon, then write the claim's channels.

        Raises:
            DriverError: `DaemonNotReady`, `FabricError`, `DeviceNodeMissing` and others; the claim
                stays recorded, because the node stays labelled for it.
        """
        clique = await self._fabric.wait_clique_for_claim(record.ref, self._waits, deadline)
        started_at = self._spans.now()
        attributes = {keys.DOMAIN_UID: domain.uid, keys.CLIQUE: clique}
        try:
            with self._telemetry.step("wait domain", attributes) as span:
                span.add_link(self._spans.link(domain))
                await self._readiness.wait_ready(record.ref, domain, clique, deadline, span, notify)
        except DriverError as failure:
            self._spans.emit_operation(
                "wait domain", record.ref, domain, clique, started_at, failure, span
            )
            raise
        self._spans.emit_operation(
            "wait domain", record.ref, domain, clique, started_at, None, span
        )
        with self._telemetry.step("write cdi"):
            return await self._specs.write(record, clique, domain, deadline)

    def _report_left(self, record: DomainClaimRecord) -> None:
        """Report the end of the membership in the domain's trace.

        If the process was killed during the claim's only attempt, nothing has been reported yet.
        """
        if not record.domain:
            return  # the claim was gone already when its record was made
        domain = record.to_domain()
        if record.is_joining:
            joined_at = self._records.recorded_at(record)
            cancelled = asyncio.CancelledError()
            self._spans.emit_member(record.ref, domain, record.clique, joined_at, cancelled)
        self._spans.renew_member_mark(domain)
