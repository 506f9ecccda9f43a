# SPDX-License-Identifier: Apache-2.0
"""Claims that the reference driver has prepared, until the last of them is unprepared.

Their records come from the kubelet's checkpoint and have the names that the kubelet was answered
with, which are in specs of the reference driver's own. These are kept, and written again if they
are gone: after a reboot, because their directory is a tmpfs.
"""

import asyncio
from typing import Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_cdi.errors import CDIError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi import foreign_specs
from nvdra_gpu_plugin.cdi.foreign_specs import ForeignSpecs
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 5.0
"""As for the plugin's own specs: a container that starts while a spec is missing fails, and the
kubelet creates it again."""


class ForeignClaims:
    """The claims of one node that the reference driver has prepared."""

    def __init__(
        self,
        gpus: NodeGpus,
        specs: ForeignSpecs,
        files: Worker,
        prepared_claims: PreparedClaims[GpuClaimRecord],
    ) -> None:
        self._gpus = gpus
        self._specs = specs
        self._files = files
        self._prepared_claims = prepared_claims

    async def restore_spec(self, record: GpuClaimRecord) -> None:
        """Check that the claim's names exist; write its spec again if they do not.

        Raises:
            RetryableError: `DriverMismatch`: they do not exist, and cannot be written.
        """
        problem = await self._restore(record)
        if problem:
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                f"claim {record.ref} was prepared by another driver, and its CDI spec is gone: "
                f"{problem}",
                "if it lasts, delete the pod, so that its claims are prepared anew",
                claim=str(record.ref),
            )

    async def run(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Keep the specs of these claims, and remove what is left once the last one is gone."""
        await recovery.done.wait()
        while True:
            records = [each for each in self._prepared_claims.values() if each.is_foreign]
            for record in records:
                with background_tasks.contain("A spec is missing", claim=str(record.ref)):
                    problem = await self._restore(record)
                    if problem:
                        LOG.v(2, "A spec is missing", claim=str(record.ref), error=problem)
            if await self._remove_others(records) and not records:
                return
            await asyncio.sleep(_INTERVAL_S)

    async def _restore(self, record: GpuClaimRecord) -> str:
        """Write the claim's spec if it is gone; return why that is not possible."""
        if await self._files.run(self._specs.has, record):
            return ""
        snapshot = self._gpus.snapshot
        if snapshot is None:
            return self._gpus.problem
        spec = foreign_specs.build_spec(record, snapshot.spec, snapshot.inventory)
        if spec is None:
            return "a GPU of it is not on the node"
        try:
            await self._files.run(self._specs.write, record.uid, spec)
        except CDIError as error:
            return str(error)
        return ""

    async def _remove_others(self, records: list[GpuClaimRecord]) -> bool:
        try:
            await self._files.run(self._specs.remove_others, {record.uid for record in records})
        except (CDIError, OSError) as error:
            LOG.warning("A file of another driver cannot be removed", error=str(error))
            return False
        return True
