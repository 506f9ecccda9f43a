# SPDX-License-Identifier: Apache-2.0
"""What claims wait for that are recorded when they have their device, not before.

A daemon's claim waits for the node's clique. A channel where the host runs IMEX itself
(`--imex-mode=hostManaged`) waits for the host's IMEX as well: there is no daemon of this driver,
and the node is not labelled.

Source: docs/reference/compute-domain.md, "Daemon claim", "Host-managed channel claim".
"""

from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.daemon.host_imex import HostImex
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.fabric.monitor import FabricMonitor


class NodeReadiness:
    """Waits for the fabric, and for the IMEX of the host."""

    def __init__(
        self, fabric: FabricMonitor, imex: HostImex, waits: DeviceWaitQueue, telemetry: Telemetry
    ) -> None:
        self._fabric = fabric
        self._imex = imex
        self._waits = waits
        self._telemetry = telemetry

    async def wait(self, record: DomainClaimRecord, deadline: float) -> DomainClaimRecord:
        """The record with the node's clique, when nothing is missing any more.

        Raises:
            DriverError: `FabricError`, `DriverMismatch`, `DeadlineExceeded`; for a channel
                `DaemonNotReady`, `ImexBinaryMissing`.
        """
        clique = await self._fabric.wait_clique_for_claim(record.ref, self._waits, deadline)
        if clique and record.is_channel:
            with self._telemetry.step("wait imex"):
                await self._imex.wait_ready(record.ref, self._waits, deadline)
        return record.model_copy(update={"clique": clique})
