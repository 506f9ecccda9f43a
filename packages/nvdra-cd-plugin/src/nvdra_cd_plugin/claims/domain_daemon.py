# SPDX-License-Identifier: Apache-2.0
"""Claims of a domain's IMEX daemon.

The daemon of a domain gets the domain's directory, the driver's files and the right to manage
IMEX; no other pod may have them. Source: docs/reference/compute-domain.md, "Daemon claim",
"Security" (KW-50, KW-51).
"""

from nvdra_api.errors import DriverError
from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.cdi.daemon_specs import DaemonSpecs
from nvdra_cd_plugin.claims.record_writer import RecordWriter
from nvdra_cd_plugin.daemon.pod_admission import PodAdmission
from nvdra_cd_plugin.daemon.readiness_watch import ReadinessWatch
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.domains.lookup import DomainLookup
from nvdra_cd_plugin.fabric.monitor import FabricMonitor
from nvdra_cd_plugin.membership.domain_spans import DomainSpans


class DomainDaemonStrategy:
    """Implements `ClaimStrategy` for daemons."""

    def __init__(
        self,
        domains: DomainLookup,
        pods: PodAdmission,
        records: RecordWriter,
        fabric: FabricMonitor,
        readiness: ReadinessWatch,
        specs: DaemonSpecs,
        waits: DeviceWaitQueue,
        spans: DomainSpans,
        telemetry: Telemetry,
    ) -> None:
        self._domains = domains
        self._pods = pods
        self._records = records
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
        """Admit the daemon's pod, write what the daemon gets, and record the claim.

        Raises:
            DriverError: `NamespaceMismatch`, `NotADaemon`, `FabricError`, `DriverMismatch`,
                `DeviceNodeMissing`, `StateUnavailable` and others.
        """
        del notify  # the workload of the domain is told instead
        with self._telemetry.step("find domain", {keys.DOMAIN_UID: record.domain}):
            await self._pods.admit(record, deadline)
            domain = await self._domains.find_for_claim(record, deadline)
        record = record.with_domain(domain)
        with self._readiness.track_daemon_claim(record):
            self._records.check_free(record)
            return await self._give(claim, record, domain, deadline)

    async def prepare_again(self, record: DomainClaimRecord, deadline: float) -> PrepareResult:
        """Restore what the daemon has, in one boot without the API server and the fabric.

        A record of another boot is written again with the clique of this one, as the node may be
        in another rack: the daemon may start from now on.

        Raises:
            DriverError: `DriverMismatch`, `DeviceNodeMissing`, `StateUnavailable`, and in another
                boot `FabricError` and others.
        """
        with self._telemetry.step("write cdi"):
            if self._records.is_of_this_boot(record):
                return (await self._specs.restore(record, deadline)).prepare_result()
            clique = await self._fabric.wait_clique_for_claim(record.ref, self._waits, deadline)
            return await self._records.add(await self._specs.write(record, clique, deadline))

    async def unprepare(self, record: DomainClaimRecord, deadline: float) -> None:
        """Remove the claim's spec and record.

        Raises:
            RetryableError: `StateUnavailable`, `DeadlineExceeded`: the claim stays recorded.
        """
        await self._records.remove(record, deadline)

    async def _give(
        self, claim: ResourceClaim, record: DomainClaimRecord, domain: Domain, deadline: float
    ) -> PrepareResult:
        """Write and record the claim, and report it in the domain's trace."""
        started_at = self._spans.now()
        try:
            with self._telemetry.step("write cdi") as span:
                span.add_link(self._spans.link(domain))
                clique = await self._fabric.wait_clique_for_claim(record.ref, self._waits, deadline)
                completed = await self._specs.write(record, clique, deadline)
            result = await self._records.add_if_free(completed, deadline)
        except DriverError as error:
            self._spans.emit_operation(
                "prepare", record.ref, domain, record.clique, started_at, error
            )
            raise
        joined_at = self._records.joined_at(domain.uid)
        self._spans.emit_schedule_daemon(claim, domain, clique, joined_at, started_at)
        self._spans.emit_operation("prepare", record.ref, domain, clique, started_at)
        return result
