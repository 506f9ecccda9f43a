# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims of GPUs. `plan` decides what a claim gets, `engine` makes it true.

When the kubelet is answered, these are on the disk, in this order: the node's CDI spec, which has
the names of whole GPUs and existing MIG devices; a record that is `started`, if the claim changes
its node; the CDI spec and the device metadata of the claim, if it has its own; its record.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from nvdra_api import names
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.resource.claims import ResourceClaim
from nvdra_runtime.claims import allocation
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.engine import Engine, NotInForceError
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.claims import plan, record_checks
from nvdra_gpu_plugin.claims.claimed_gpus import ClaimedGpus
from nvdra_gpu_plugin.claims.foreign_claims import ForeignClaims
from nvdra_gpu_plugin.claims.node_specs import NodeSpecs
from nvdra_gpu_plugin.claims.plan import Planner
from nvdra_gpu_plugin.claims.recovery import ClaimRecovery
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.hardware.verification import MigModeOnError

LOG = logs.logger(__name__)

_REASON_S: Final = 5.0
"""Waiting for daemons ends at its own deadline, with what their pods say."""

_WHOLE: Final = "The claim asks for a minimum of capacity and gets whole devices"


class Preparer:
    """A `nvdra_runtime.claims.service.Preparer` for GPUs."""

    def __init__(
        self,
        planner: Planner,
        gpus: ClaimedGpus,
        specs: NodeSpecs,
        foreign_claims: ForeignClaims,
        engine: Engine[GpuClaimRecord],
        recovery: ClaimRecovery,
        waits: DeviceWaitQueue,
        telemetry: Telemetry,
    ) -> None:
        self._planner = planner
        self._gpus = gpus
        self._specs = specs
        self._foreign_claims = foreign_claims
        self._engine = engine
        self._recovery = recovery
        self._waits = waits
        self._telemetry = telemetry

    async def prepare(
        self, claim: ResourceClaim, deadline: float, notify: NotifyWaiting
    ) -> PrepareResult:
        """Prepare the claim's GPUs, if no other claim holds them.

        `notify` is used while NVML is released; the service waits for other claims.

        Raises:
            DriverError: Nothing is recorded.
        """
        devices = [result.device for result in allocation.results(claim, names.GPU_DRIVER)]
        while True:
            snapshot = await self._gpus.wait_devices(claim.ref, devices, deadline, notify)
            await self._recovery.plan_all_again(deadline)
            with self._telemetry.step("resolve config"):
                planned = self._planner.plan(claim, snapshot)
            await self._recovery.roll_back_others(planned.record, deadline)
            try:
                record = await self._make_true(snapshot, planned.record, deadline)
            except NotInForceError as starting:  # the GPUs' locks are not held any more
                await self._wait_in_force(starting, deadline)
                continue
            if record is None:
                continue
            if planned.minimum_capacity:
                LOG.v(2, _WHOLE, claim=str(claim.ref), minimum=planned.minimum_capacity)
            return replace(record.prepare_result(), unapplied_configs=planned.unapplied_configs)

    async def _make_true(
        self, snapshot: Snapshot, record: GpuClaimRecord, deadline: float
    ) -> GpuClaimRecord | None:
        """Give a planned claim its devices. None if the node's devices are others by now.

        Raises:
            NotInForceError: All is made, and daemons start. Wait, and call this again.
            DriverError: As `prepare`.
        """
        async with self._gpus.locked(record, deadline):
            self._gpus.check_free(record, self._specs.driver_versions)
            await self._restore_spec(record, deadline)
            with self._gpus.in_use() as may_use_gpus:
                if not may_use_gpus:
                    return None
                record = await self._verified(snapshot, record, deadline)
                if not self._gpus.is_current(snapshot):
                    return None
                verify = partial(self._gpus.verify_changed, snapshot, record)
                return await self._engine.prepare(record, verify)

    async def prepare_again(self, record: GpuClaimRecord, deadline: float) -> PrepareResult:
        """Verify a prepared claim and return the same result. The API server is not needed.

        While NVML is released nothing can be verified, and a container that starts would be in the
        administrator's way, so this waits, too.
        """
        while True:
            snapshot = await self._gpus.wait_recorded(record, deadline)
            current = self._recovery.planned_again(record, snapshot)
            record_checks.check_same_gpus(current, snapshot.inventory, snapshot.spec.generation)
            if current.is_foreign:
                await self._foreign_claims.restore_spec(current)
            else:
                self._specs.check_exists(current, snapshot.spec.generation)
                await self._restore_spec(current, deadline)
            devices = record_checks.with_present_names(current, snapshot.inventory)
            try:
                with self._gpus.in_use() as may_use_gpus:
                    if may_use_gpus:
                        if current.steps:
                            current = await self._recovery.restore(current, deadline)
                        await self._gpus.verify(snapshot, devices, deadline)
                        if not current.steps:
                            await self._engine.restore(current)
                        return current.prepare_result()
            except NotInForceError as starting:
                await self._wait_in_force(starting, deadline)

    async def unprepare(self, record: GpuClaimRecord, deadline: float) -> None:
        """Undo what was done to hardware, and remove the record. Nothing else is needed for this.

        What the hardware does not let be undone stays as a tombstone, and the claim is let go.

        Raises:
            DriverError: A process still uses a device. The record keeps its place.
        """
        async with (
            self._gpus.locked(record, deadline),
            self._recovery.current(record, deadline) as current,
        ):
            # It may have been rolled back meanwhile, and others have its place.
            if current is not None and not current.is_released:
                with self._gpus.in_use() as may_use_gpus:
                    await self._engine.release(current, may_use_devices=may_use_gpus)
        await self._specs.remove_if_last(record)

    async def _restore_spec(self, record: GpuClaimRecord, deadline: float) -> None:
        """Write the CDI spec that the result's names refer to, if it is not as it should be."""
        if not self._specs.is_current_for(record):
            with self._telemetry.step("write cdi"):
                await self._specs.restore_current(deadline)

    async def _wait_in_force(self, waiting: NotInForceError, deadline: float) -> None:
        """Wait for daemons, unless the claim is to be unprepared, which must not wait behind this.

        Raises:
            RetryableError: `MpsNotReady`.
        """
        ref = waiting.record.ref
        cancelled = RetryableError(
            Reason.MPS_NOT_READY,
            f"claim {ref} is to be unprepared while its MPS control daemon starts",
            "if a pod still needs the claim, the kubelet prepares it again",
            claim=str(ref),
        )
        async with self._waits.wait_until(ref, cancelled, deadline + _REASON_S):
            await self._engine.wait_in_force(waiting, deadline)

    async def _verified(
        self, snapshot: Snapshot, record: GpuClaimRecord, deadline: float
    ) -> GpuClaimRecord:
        """Verify the devices that exist. The result has a change for each GPU in MIG mode."""
        switched: list[Gpu] = []
        while True:
            try:
                skipped = {gpu.name for gpu in switched}
                devices = plan.existing_devices(record, snapshot.inventory, skipped)
                await self._gpus.verify(snapshot, devices, deadline)
            except MigModeOnError as error:
                switched.append(error.gpu)
            else:
                return plan.with_mig_mode_off(record, switched) if switched else record
