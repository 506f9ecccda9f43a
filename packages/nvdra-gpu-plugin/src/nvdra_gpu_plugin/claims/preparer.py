# SPDX-License-Identifier: Apache-2.0
"""Prepares and unprepares claims of GPUs, step by step. `plan` decides which GPU a claim gets."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from nvdra_api import names
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import NodeName
from nvdra_api.resource.claims import ClaimRef, DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import DeviceConfig, GpuConfig, MigDeviceConfig
from nvdra_runtime.claims import allocation, opaque_configs
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue, NotifyWaiting
from nvdra_runtime.claims.engine import Engine, NotInForceError
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.telemetry import keys, logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.claims import plan, record_checks, shares
from nvdra_gpu_plugin.claims.claim_metadata import ClaimMetadata
from nvdra_gpu_plugin.claims.foreign_claims import ForeignClaims
from nvdra_gpu_plugin.claims.node_specs import NodeSpecs
from nvdra_gpu_plugin.claims.recovery import ClaimRecovery, gpus_of
from nvdra_gpu_plugin.claims.replanner import Replanner
from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.hardware.verification import GpuVerifier, MigModeOnError
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate
from nvdra_gpu_plugin.share_policy import SharePolicy

LOG = logs.logger(__name__)

_VERIFY_TIMEOUT_S: Final = 10.0
"""After a claim's steps, whatever is left of the caller's time: work that has begun is finished."""

_REASON_S: Final = 5.0
"""Waiting for daemons ends at its own deadline, with what their pods say."""

_WHOLE: Final = "The claim asks for a minimum of capacity and gets whole devices"


class Preparer:
    """A `nvdra_runtime.claims.service.Preparer` for GPUs."""

    def __init__(
        self,
        node: NodeName,
        gates: FeatureGates,
        gpus: NodeGpus,
        verifier: GpuVerifier,
        specs: NodeSpecs,
        metadata: ClaimMetadata,
        foreign_claims: ForeignClaims,
        replanner: Replanner,
        engine: Engine[GpuClaimRecord],
        recovery: ClaimRecovery,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        claim_index: GpuClaimIndex,
        gate: PrepareGate,
        waits: DeviceWaitQueue,
        telemetry: Telemetry,
        share_policy: SharePolicy | None = None,
    ) -> None:
        self._node = node
        self._gates = gates
        self._gpus = gpus
        self._verifier = verifier
        self._specs = specs
        self._metadata = metadata
        self._foreign_claims = foreign_claims
        self._replanner = replanner
        self._engine = engine
        self._recovery = recovery
        self._prepared_claims = prepared_claims
        self._claim_index = claim_index
        self._gate = gate
        self._waits = waits
        self._telemetry = telemetry
        self._share_policy = share_policy

    async def prepare(
        self, claim: ResourceClaim, deadline: float, notify: NotifyWaiting
    ) -> PrepareResult:
        """Prepare the claim's GPUs, if no other claim holds them.

        `notify` is used while NVML is released; the service waits for other claims.

        Raises:
            DriverError: Nothing is recorded.
        """
        while True:
            try:
                return await self._prepare(claim, deadline, notify)
            except NotInForceError as starting:  # the GPUs' locks are not held any more
                await self._wait_in_force(starting, deadline)

    async def _prepare(
        self, claim: ResourceClaim, deadline: float, notify: NotifyWaiting
    ) -> PrepareResult:
        devices = [result.device for result in allocation.results(claim, names.GPU_DRIVER)]
        while True:
            await self._wait_resumed(claim.ref, deadline, notify)
            snapshot = await self._wait_snapshot(devices, deadline)
            await self._replanner.complete(deadline)
            with self._telemetry.step("resolve config"):
                configured = opaque_configs.resolve(
                    claim, names.GPU_DRIVER, _config_kind, self._gates
                )
                record = plan.make(
                    claim,
                    configured,
                    snapshot.inventory,
                    snapshot.spec.generation,
                    self._node,
                    self._share_policy,
                )
                record = self._metadata.planned(record, claim, snapshot.inventory)
            await self._recovery.roll_back_others(record, gpus_of(record), deadline)
            async with self._locked(record, deadline):
                self._check_free(record)
                await self._restore_spec(record, deadline)
                with self._gate.passed() as may_use_gpus:
                    if not may_use_gpus:
                        continue
                    record = await self._verified(snapshot, record, deadline)
                    # If the node's devices have changed meanwhile, the claim is planned again.
                    if self._gpus.snapshot is snapshot:
                        record = await self._engine.prepare(
                            record, partial(self._verify_made, snapshot, record)
                        )
                        if minimum := shares.minimum_capacity(claim, configured):
                            LOG.v(2, _WHOLE, claim=str(claim.ref), minimum=minimum)
                        return replace(
                            record.prepare_result(),
                            unapplied_configs=tuple(
                                opaque_configs.unapplied(claim, names.GPU_DRIVER, configured)
                            ),
                        )

    async def prepare_again(self, record: GpuClaimRecord, deadline: float) -> PrepareResult:
        """Verify a prepared claim and return the same result. The API server is not needed.

        While NVML is released nothing can be verified, and a container that starts would be in the
        administrator's way, so this waits, too.
        """
        while True:
            try:
                return await self._prepare_again(record, deadline)
            except NotInForceError as starting:  # the GPUs' locks are not held any more
                await self._wait_in_force(starting, deadline)

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

    async def _prepare_again(self, record: GpuClaimRecord, deadline: float) -> PrepareResult:
        while True:
            await self._wait_resumed(record.ref, deadline)
            snapshot = await self._wait_gpus(record, deadline)
            current = self._replanner.planned_again(record, snapshot)
            record_checks.check_same_gpus(current, snapshot.inventory, snapshot.spec.generation)
            if current.is_foreign:
                await self._foreign_claims.restore_spec(current)
            else:
                self._specs.check_exists(current, snapshot.spec.generation)
                await self._restore_spec(current, deadline)
            devices = record_checks.with_present_names(current, snapshot.inventory)
            with self._gate.passed() as may_use_gpus:
                if may_use_gpus:
                    if current.steps:
                        current = await self._recovery.restore(current, deadline)
                    await self._verify(snapshot, devices, deadline)
                    if not current.steps:
                        await self._engine.restore(current)
                    return current.prepare_result()

    async def unprepare(self, record: GpuClaimRecord, deadline: float) -> None:
        """Undo what was done to hardware, and remove the record. Nothing else is needed for this.

        What the hardware does not let be undone stays as a tombstone, and the claim is let go.

        Raises:
            DriverError: A process still uses a device. The record keeps its place.
        """
        async with (
            self._locked(record, deadline),
            self._replanner.record_locks.hold(
                (record.uid,), holder=str(record.ref), deadline=deadline
            ),
        ):
            current = self._prepared_claims.get(record.uid)
            # It may have been rolled back meanwhile, and others have its place.
            if current is not None and not current.is_released:
                with self._gate.passed() as may_use_gpus:
                    await self._engine.release(current, may_use_devices=may_use_gpus)
        await self._specs.remove_if_last(record)

    async def _verified(
        self, snapshot: Snapshot, record: GpuClaimRecord, deadline: float
    ) -> GpuClaimRecord:
        """Verify the devices that exist. The result has a step for each GPU in MIG mode."""
        switched: list[Gpu] = []
        while True:
            try:
                names = {gpu.name for gpu in switched}
                devices = [each for each in record.devices if each.device not in names]
                await self._verify(snapshot, devices, deadline)
            except MigModeOnError as error:
                switched.append(error.gpu)
            else:
                return plan.with_mig_mode_off(record, switched) if switched else record

    async def _verify_made(self, snapshot: Snapshot, record: GpuClaimRecord) -> None:
        """Verify a claim's devices when its changes are made, as long as that may take.

        They were verified before the first change; one without changes is not verified again.
        """
        if record.steps:
            deadline = asyncio.get_running_loop().time() + _VERIFY_TIMEOUT_S
            await self._verify(snapshot, record.devices, deadline)

    async def _wait_resumed(
        self, ref: ClaimRef, deadline: float, notify: NotifyWaiting | None = None
    ) -> None:
        """Wait while NVML is released."""
        if not self._gate.is_open:
            with self._telemetry.step("wait nvml"):
                await self._gate.wait_open(ref, deadline, notify)

    async def _wait_snapshot(self, devices: Collection[str], deadline: float) -> Snapshot:
        """The node's GPUs. Waits while these devices have not been discovered yet."""
        if not self._gpus.is_discovered:
            with self._telemetry.step("wait discovery"):
                await self._gpus.wait_discovered(deadline)
        if not self._gpus.is_complete:
            with self._telemetry.step("wait discovery") as span:
                if not await self._gpus.wait_described(devices, deadline):
                    span.discard()
        return self._gpus.usable(f"node {self._node}")

    async def _wait_gpus(self, record: GpuClaimRecord, deadline: float) -> Snapshot:
        """The node's GPUs. Waits while those of the claim have not been described yet."""
        snapshot = await self._wait_snapshot((), deadline)
        missing = record_checks.missing_devices(record, snapshot.inventory)
        if not missing:
            return snapshot
        snapshot = await self._wait_snapshot([each.device for each in missing], deadline)
        await self._gpus.wait_uuids({each.uuid for each in missing if each.uuid}, deadline)
        return self._gpus.snapshot or snapshot

    def _check_free(self, record: GpuClaimRecord) -> None:
        try:
            plan.check_free(record, self._claim_index, self._specs.driver_versions)
        except DeviceInUseError as error:
            error.since = self._prepared_claims.prepared_at(error.holder.uid)
            raise
        plan.check_records_complete(
            record,
            self._prepared_claims.unreadable.values(),
            self._prepared_claims.incomplete_reason,
        )

    @asynccontextmanager
    async def _locked(self, record: GpuClaimRecord, deadline: float) -> AsyncIterator[None]:
        """Hold the locks of the claim's GPUs for the block."""
        hold = self._recovery.locks.hold(gpus_of(record), holder=str(record.ref), deadline=deadline)
        try:
            if hold.try_acquire():  # the usual case: there is nothing to trace
                self._telemetry.metrics.lock_wait(0.0)
            else:
                with self._telemetry.step("wait lock") as span:
                    waited = await hold.acquire()
                    self._telemetry.metrics.lock_wait(waited.seconds)
                    if waited.holder is not None:
                        span.set_attribute(keys.HOLDER, waited.holder)
            yield
        finally:
            hold.release()

    async def _restore_spec(self, record: GpuClaimRecord, deadline: float) -> None:
        """Write the CDI spec that the result's names refer to, if it is not as it should be."""
        if not self._specs.is_current_for(record):
            with self._telemetry.step("write cdi"):
                await self._specs.restore_current(deadline)

    async def _verify(
        self, snapshot: Snapshot, devices: Collection[GpuDeviceRecord], deadline: float
    ) -> None:
        # A GPU may occur several times; of monitoring, less is asked. What is made for the claim is
        # verified by its steps.
        ordered = sorted(devices, key=lambda device: not device.is_admin)
        by_uuid = {device.uuid: device for device in ordered if not device.is_made}
        if not by_uuid:
            return
        with self._telemetry.step(
            "verify devices", {keys.HW_TYPE: keys.HW_TYPE_GPU, keys.HW_ID: tuple(by_uuid)}
        ):
            await self._verifier.verify(snapshot, tuple(by_uuid.values()), deadline)


def _config_kind(result: DeviceRequestAllocationResult) -> type[DeviceConfig]:
    is_mig = device_names.parse_mig_name(result.device) is not None
    return MigDeviceConfig if is_mig else GpuConfig
