"""The CDI specs that prepared claims refer to: restores the current one, removes unused ones.

A spec is removed when the driver has changed and no prepared claim refers to it any more. A claim
whose record was lost also refers to a spec. Therefore no spec is removed before `RecordRecovery`
has recovered all records from the kubelet's checkpoint; if it cannot be read, all specs are kept.
"""

from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_cdi.errors import CDIError, FileError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.devices import claim_records
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

LOG = logs.logger(__name__)


class NodeSpecs:
    """The node's CDI specs, from the view of claims."""

    def __init__(
        self,
        gpus: NodeGpus,
        spec_files: SpecFiles,
        files: Worker,
        prepared_claims: PreparedClaims[GpuClaimRecord],
    ) -> None:
        self._gpus = gpus
        self._spec_files = spec_files
        self._files = files
        self._prepared_claims = prepared_claims
        self._may_remove = False

    @property
    def has_current(self) -> bool:
        """Whether the current spec exists; one `stat`."""
        snapshot = self._gpus.snapshot
        return snapshot is not None and self.has(snapshot.spec.generation.name)

    def has(self, generation: str) -> bool:
        """Whether the container runtime can resolve device names of this generation."""
        return self._spec_files.has(generation)

    def check_exists(self, record: GpuClaimRecord, current: SpecGeneration) -> None:
        """Check that the spec of a prepared claim exists; it may be of an older generation.

        Raises:
            PermanentError: `DriverMismatch`.
        """
        if record.generation != current.name and not self.has(record.generation):
            raise PermanentError(
                Reason.DRIVER_MISMATCH,
                f"claim {record.ref} was prepared with driver generation {record.generation}, "
                f"whose CDI spec is gone; the node now has {current.name}",
                "delete the pod, so that its claims are prepared anew",
                claim=str(record.ref),
            )

    async def restore_current(self, deadline: float) -> None:
        """Write the current spec again, because somebody removed it.

        Raises:
            PermanentError: `DeviceNodeMissing`: it cannot be written.
            RetryableError: `DeadlineExceeded`: the disk does not respond.
        """
        snapshot = self._gpus.snapshot
        if snapshot is None:
            return
        try:
            await self._files.run(self._spec_files.write, snapshot.spec, deadline=deadline)
        except CDIError as error:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"the CDI spec of this node's GPUs was removed and cannot be written: {error}",
                "check that --cdi-root is a writable directory with free space",
            ) from error
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "the CDI spec of this node's GPUs was removed and is still being written",
                "check whether the disk of --cdi-root responds",
            ) from error

    async def remove_unused(self) -> None:
        """Remove the specs that no prepared claim refers to.

        A failure is harmless: it is retried.
        """
        if self._gpus.snapshot is None or not self._may_remove:
            return
        used = claim_records.generations(self._prepared_claims.values())
        try:
            recent = self._gpus.recent_generations
            await self._files.run(self._spec_files.remove_unused, {*used, *recent})
        except (FileError, OSError) as error:
            LOG.warning("An unused CDI spec cannot be removed", error=str(error))

    async def remove_if_last(self, record: GpuClaimRecord) -> None:
        """Remove unused specs if the record was the last one of an older generation."""
        snapshot = self._gpus.snapshot
        if snapshot is None or record.generation == snapshot.spec.generation.name:
            return
        if record.generation not in claim_records.generations(self._prepared_claims.values()):
            await self.remove_unused()

    async def run_cleanup(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Remove unused specs whenever the node's devices change. Run until cancelled."""
        await recovery.done.wait()
        self._may_remove = True
        serial = 0
        while True:
            serial = await self._gpus.changed_since(serial)
            await self.remove_unused()
