# SPDX-License-Identifier: Apache-2.0
"""The CDI specs that prepared claims refer to: restores the current one, removes unused ones.

A claim of an earlier boot was answered with names that are in no spec of this boot, or mean other
hardware there. The current spec gets them, whether or not the kubelet prepares the claim again:
kubelets before 1.37 add the next answer to the old one and give the runtime the names of both.

A spec is removed when the driver has changed and no prepared claim refers to it any more. A claim
whose record was lost also refers to a spec. Therefore no spec is removed before `RecordRecovery`
has recovered all records from the kubelet's checkpoint; if it cannot be read, all specs are kept.
"""

from collections.abc import Mapping
from typing import Final

from nvdra_api import names
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_cdi.errors import CDIError, FileError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.claimed_names import ClaimedNames, claimed_names
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

LOG = logs.logger(__name__)

_OURS: Final = f"{names.GPU_CDI_DEVICE_KIND}="


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
    def driver_versions(self) -> Mapping[str, str]:
        """The version of the driver in the spec of each generation."""
        return self._spec_files.driver_versions

    def is_current_for(self, record: GpuClaimRecord) -> bool:
        """Whether the current spec exists and is as the claim needs it; a few `stat` calls."""
        snapshot = self._gpus.snapshot
        if all(device.is_vfio for device in record.devices):
            return True  # it needs none
        if snapshot is None or not self.has(snapshot.spec.generation.name):
            return False
        return not (_has_own_names(record, snapshot) or snapshot.spec.lacks_socket())

    def has(self, generation: str) -> bool:
        """Whether the container runtime can resolve device names of this generation."""
        return self._spec_files.has(generation)

    def check_exists(self, record: GpuClaimRecord, current: SpecGeneration) -> None:
        """Check that the spec of a prepared claim exists; it may be of an older generation.

        Raises:
            PermanentError: `DriverMismatch`.
        """
        if all(device.is_of_change for device in record.devices):
            return  # they are in a spec of the claim's own
        if record.generation != current.name and not self.has(record.generation):
            raise PermanentError(
                Reason.DRIVER_MISMATCH,
                f"claim {record.ref} was prepared with driver generation {record.generation}, "
                f"whose CDI spec is gone; the node now has {current.name}",
                "delete the pod, so that its claims are prepared anew",
                claim=str(record.ref),
            )

    async def find_generation(self, cdi_id: str) -> str:
        """The generation of the spec that has this device; empty if none has it."""
        kind, _, name = cdi_id.partition("=")
        if kind != names.GPU_CDI_DEVICE_KIND:
            return ""
        snapshot = self._gpus.snapshot
        if snapshot is not None and cdi_id in snapshot.spec.generation.cdi_ids.values():
            return snapshot.spec.generation.name
        return await self._files.run(self._spec_files.generation_of, name)

    async def restore_current(self, deadline: float) -> None:
        """Write the current spec again, if it is not as it should be.

        It was removed, a service has stopped whose socket is in it, or a claim has names of
        its own.

        Raises:
            PermanentError: `DeviceNodeMissing`: it cannot be written.
            RetryableError: `DeadlineExceeded`: the disk does not respond.
        """
        snapshot = self._gpus.snapshot
        if snapshot is None:
            return
        try:
            await self._files.run(
                self._spec_files.update,
                snapshot.spec,
                claims_names(self._prepared_claims),
                deadline=deadline,
            )
        except CDIError as error:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"the CDI spec of this node's GPUs must be written and cannot be: {error}",
                "check that --cdi-root is a writable directory with free space",
            ) from error
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "the CDI spec of this node's GPUs must be written, which takes long",
                "check whether the disk of --cdi-root responds",
            ) from error

    async def remove_unused(self) -> None:
        """Remove the specs that no prepared claim refers to.

        A failure is harmless: it is retried.
        """
        if self._gpus.snapshot is None or not self._may_remove:
            return
        try:
            await self._files.run(
                self._spec_files.remove_unused,
                claims_names(self._prepared_claims),
                self._gpus.recent_generations,
            )
        except (FileError, OSError) as error:
            LOG.warning("An unused CDI spec cannot be removed", error=str(error))

    async def remove_if_last(self, record: GpuClaimRecord) -> None:
        """Remove what no claim needs any more: an older spec, or names that only claims have."""
        snapshot = self._gpus.snapshot
        if snapshot is None:
            return
        if record.generation == snapshot.spec.generation.name:
            is_unused = _has_own_names(record, snapshot)
        else:
            others = self._prepared_claims.values()
            is_unused = all(other.generation != record.generation for other in others)
        if is_unused:
            await self.remove_unused()

    async def run_cleanup(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Remove unused specs whenever the node's devices change. Run until cancelled."""
        await recovery.done.wait()
        self._may_remove = True
        serial = 0
        while True:
            serial = await self._gpus.changed_since(serial)
            await self.remove_unused()


def _has_own_names(record: GpuClaimRecord, snapshot: Snapshot) -> bool:
    """Whether the current spec must have names that it has for this claim alone."""
    current = snapshot.spec.generation
    if record.generation != current.name:
        return False
    known = current.cdi_ids.values()
    return any(
        device.cdi_id not in known for device in record.devices if device.cdi_id.startswith(_OURS)
    )


def is_planned(record: GpuClaimRecord, prepared_claims: PreparedClaims[GpuClaimRecord]) -> bool:
    """Whether the record was planned in this boot and says in which spec its names are."""
    is_ours = any(device.cdi_id.startswith(_OURS) for device in record.devices)
    return prepared_claims.is_of_this_boot(record.uid) and bool(record.generation or not is_ours)


def claims_names(prepared_claims: PreparedClaims[GpuClaimRecord]) -> ClaimedNames:
    """The CDI names of all prepared claims."""
    records = prepared_claims.values()
    earlier = {record.uid for record in records if not is_planned(record, prepared_claims)}
    return claimed_names(records, earlier)
