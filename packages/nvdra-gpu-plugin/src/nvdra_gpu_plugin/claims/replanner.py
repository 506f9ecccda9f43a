# SPDX-License-Identifier: Apache-2.0
"""Plans the records of an earlier boot again, with today's hardware.

A reboot may change a GPU's PCI address, device name and device nodes, and the driver. A record
keeps what its claim was answered with; `node_specs` gives the current CDI spec those names. GPUs
are matched by UUID. Source: docs/design.md, "CDI written ahead".
"""

import asyncio
from contextlib import suppress
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.locks import KeyedLocks
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.claims import node_specs, record_checks
from nvdra_gpu_plugin.claims.claim_metadata import ClaimMetadata
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

LOG = logs.logger(__name__)

_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 5.0
"""Between two attempts while the state file cannot be written."""


class Replanner:
    """Plans records again.

    Attributes:
        record_locks: Whoever removes a record holds the lock of its claim, so that it is not
            written again meanwhile.
    """

    def __init__(
        self,
        gpus: NodeGpus,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        metadata: ClaimMetadata,
    ) -> None:
        self.record_locks: KeyedLocks[ClaimUID] = KeyedLocks()
        self._gpus = gpus
        self._metadata = metadata
        self._prepared_claims = prepared_claims
        self._completed: Snapshot | None = None

    def planned_again(self, record: GpuClaimRecord, snapshot: Snapshot) -> GpuClaimRecord:
        """The record as it is now; the same record unless it is of an earlier boot."""
        is_planned = node_specs.is_planned(record, self._prepared_claims)
        if is_planned and record.has_all_gpus:
            return record
        generation = None if is_planned else snapshot.spec.generation
        again = record_checks.planned_again(record, snapshot.inventory, generation)
        return self._metadata.planned_again(again, snapshot.inventory)

    async def complete(self, deadline: float) -> None:
        """Plan all records again that are of an earlier boot or lack a GPU.

        Returns at once if the node has not changed since the last time.

        Raises:
            RetryableError: `StateUnavailable`: a record cannot be written.
        """
        snapshot = self._gpus.snapshot
        if snapshot is None or snapshot is self._completed:
            return
        for record in tuple(self._prepared_claims.values()):
            with background_tasks.contain(
                "A record cannot be planned again", claim=str(record.ref)
            ):  # other claims do not depend on it
                await self._plan_again(record.uid, snapshot, deadline)
        self._completed = snapshot

    async def run(self) -> None:
        """Plan records again as soon as the hardware is known or changes. Run until cancelled."""
        serial = 0
        while True:
            retry_s = None if await self._try_complete() else _RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    serial = await self._gpus.changed_since(serial)

    async def _try_complete(self) -> bool:
        try:
            await self.complete(asyncio.get_running_loop().time() + _TIMEOUT_S)
        except DriverError as error:
            LOG.warning("Records of an earlier boot cannot be planned again", error=str(error))
            return False
        return True

    async def _plan_again(self, uid: ClaimUID, snapshot: Snapshot, deadline: float) -> None:
        async with self.record_locks.hold((uid,), holder="plan again", deadline=deadline):
            record = self._prepared_claims.get(uid)
            if record is None or self._prepared_claims.is_started(uid):
                return  # it was unprepared meanwhile, or is nobody's answer
            again = self.planned_again(record, snapshot)
            if again == record and self._prepared_claims.is_of_this_boot(uid):
                return
            await self._prepared_claims.add(record.ref, again)
            LOG.info(
                "A prepared claim was planned again with today's hardware",
                claim=str(record.ref),
                generation=again.generation,
                missing=[device.device for device in again.devices if not device.pci],
            )
