# SPDX-License-Identifier: Apache-2.0
"""Claims for a channel where the host runs IMEX itself (`--imex-mode=hostManaged`).

There is no daemon of this driver and the node is not labelled: the claim waits until the host's
own IMEX is ready. Source: docs/reference/compute-domain.md, "Host-managed channel claim".
"""

import asyncio
import random
from typing import Final

from nvdra_api.errors import RetryableError
from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.process import backoff
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.cdi.channel_specs import ChannelSpecs
from nvdra_cd_plugin.claims.record_writer import RecordWriter
from nvdra_cd_plugin.daemon.host_imex import HostImex
from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.domains.lookup import DomainLookup
from nvdra_cd_plugin.fabric.monitor import FabricMonitor

_QUERY_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=5.0)
"""Between two queries of the host's IMEX, which has no way to notify anybody."""


class HostChannelStrategy:
    """Implements `ClaimStrategy` for channels where the host runs IMEX."""

    def __init__(
        self,
        domains: DomainLookup,
        records: RecordWriter,
        fabric: FabricMonitor,
        imex: HostImex,
        specs: ChannelSpecs,
        waits: DeviceWaitQueue,
        telemetry: Telemetry,
    ) -> None:
        self._domains = domains
        self._records = records
        self._fabric = fabric
        self._imex = imex
        self._specs = specs
        self._waits = waits
        self._telemetry = telemetry

    async def prepare(
        self,
        claim: ResourceClaim,
        record: DomainClaimRecord,
        deadline: float,
        notify: NotifyWaiting,
    ) -> PrepareResult:
        """Wait for the host's IMEX, write the allocated channel, and record the claim.

        Raises:
            DriverError: `DaemonNotReady`, `ImexBinaryMissing`, `FabricError` and others.
        """
        del claim, notify  # the record has everything; the answer reports the wait
        with self._telemetry.step("find domain", {keys.DOMAIN_UID: record.domain}):
            domain = await self._domains.find_for_claim(record, deadline)
        admission.check_channel_namespace(record.ref, domain)
        record = record.with_domain(domain)
        self._records.check_free(record)
        completed = await self._wait_and_write(record, domain, deadline)
        return await self._records.add_if_free(completed, deadline)

    async def prepare_again(self, record: DomainClaimRecord, deadline: float) -> PrepareResult:
        """Restore the channel that the claim has; it needs no API server.

        A record of another boot is no proof that IMEX is READY in this one. A record that waits for
        a daemon was written while this driver ran the daemons. Their claims wait for the host's
        IMEX.

        Raises:
            DriverError: As `prepare`.
        """
        if record.is_joining or not self._records.is_of_this_boot(record):
            domain = await self._domains.find_for_claim(record, deadline)
            return await self._records.add(await self._wait_and_write(record, domain, deadline))
        with self._telemetry.step("write cdi"):
            return (await self._specs.restore(record, deadline)).prepare_result()

    async def unprepare(self, record: DomainClaimRecord, deadline: float) -> None:
        """Remove the claim's spec and record.

        Raises:
            RetryableError: `StateUnavailable`, `DeadlineExceeded`: the claim stays recorded.
        """
        await self._records.remove(record, deadline)

    async def _wait_and_write(
        self, record: DomainClaimRecord, domain: Domain, deadline: float
    ) -> DomainClaimRecord:
        clique = await self._fabric.wait_clique_for_claim(record.ref, self._waits, deadline)
        if clique:
            with self._telemetry.step("wait imex"):
                await self._wait_ready(record, deadline)
        # Without daemons a claim gets one channel, whatever the domain allows.
        single = Domain(domain.uid, domain.namespace, domain.name)
        with self._telemetry.step("write cdi"):
            return await self._specs.write(record, clique, single, deadline)

    async def _wait_ready(self, record: DomainClaimRecord, deadline: float) -> None:
        attempts = 0
        while True:
            try:
                return await self._imex.check_ready()
            except RetryableError as error:
                attempts += 1
                delay_s = _QUERY_BACKOFF.delay(attempts, random.random())  # noqa: S311 - spreads load
                if not backoff.fits(delay_s, asyncio.get_running_loop().time(), deadline):
                    raise
                await self._waits.pause(record.ref, error, delay_s)
