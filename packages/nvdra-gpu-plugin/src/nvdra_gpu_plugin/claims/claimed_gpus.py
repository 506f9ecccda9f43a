# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a claim: waits until they are known, locks them, says whether they are free and work.

Waiting for hardware and for a release of NVML happens before any lock is taken.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import NodeName, PciAddress
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.device_wait_queue import NotifyWaiting
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.process.locks import KeyedLocks
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.claims import plan, record_checks
from nvdra_gpu_plugin.claims.plan import DriverVersions
from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.hardware.verification import GpuVerifier
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate

_VERIFY_TIMEOUT_S: Final = 10.0
"""After a claim's changes, whatever is left of the caller's time: work that has begun is
finished."""


class ClaimedGpus:
    """The GPUs of one node, from the view of claims.

    Attributes:
        locks: A lock per GPU, for all who prepare, unprepare or recover.
    """

    def __init__(
        self,
        node: NodeName,
        gpus: NodeGpus,
        verifier: GpuVerifier,
        gate: PrepareGate,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        claim_index: GpuClaimIndex,
        telemetry: Telemetry,
    ) -> None:
        self.locks: KeyedLocks[PciAddress] = KeyedLocks()
        self._node = node
        self._gpus = gpus
        self._verifier = verifier
        self._gate = gate
        self._prepared_claims = prepared_claims
        self._claim_index = claim_index
        self._telemetry = telemetry

    async def wait_devices(
        self, ref: ClaimRef, devices: Collection[str], deadline: float, notify: NotifyWaiting
    ) -> Snapshot:
        """The node's GPUs. Waits while NVML is released or one of these devices is not described.

        Raises:
            DriverError: No GPU can be used, one of these cannot, or the deadline has passed.
            DeviceInUseError: One of these is on vfio, for another claim.
        """
        await self._wait_resumed(ref, deadline, notify)
        snapshot = await self._wait_described(devices, deadline)
        await self._wait_returned(ref, devices, deadline)
        return self._gpus.snapshot or snapshot

    async def wait_recorded(self, record: GpuClaimRecord, deadline: float) -> Snapshot:
        """The node's GPUs. Waits as `wait_devices`, for the GPUs of a prepared claim.

        Raises:
            DriverError: As `wait_devices`.
            DeviceInUseError: As `wait_devices`.
        """
        await self._wait_resumed(record.ref, deadline)
        await self._wait_described((), deadline)
        names = [device.device for device in record.devices]
        snapshot = self._gpus.usable(f"node {self._node}", names)
        missing = record_checks.missing_devices(record, snapshot.inventory)
        if not missing:
            return snapshot
        names = [device.device for device in missing]
        snapshot = await self._wait_described(names, deadline)
        await self._gpus.wait_uuids({device.uuid for device in missing if device.uuid}, deadline)
        await self._wait_returned(record.ref, names, deadline)  # admin access holds no GPU
        return self._gpus.snapshot or snapshot

    async def _wait_returned(
        self, ref: ClaimRef, devices: Collection[str], deadline: float
    ) -> None:
        """Wait for those of these devices that come back from vfio.

        Raises:
            DeviceInUseError: A claim has one there.
            RetryableError: `DeadlineExceeded`.
        """
        while waiting := self._gpus.away(devices):
            if not await self._is_returning(ref, waiting[0], deadline):
                return

    async def _is_returning(self, ref: ClaimRef, gpu: Gpu, deadline: float) -> bool:
        """Wait until there are news of a GPU that comes back from vfio. False if it stays there.

        Raises:
            DeviceInUseError: A claim has it.
            RetryableError: `DeadlineExceeded`.
        """
        holder = self._claim_index.holder(gpu.pci)
        if holder is not None:
            error = DeviceInUseError(ref, gpu.name, holder, (gpu.pci,))
            error.since = self._prepared_claims.held_since(holder.uid)
            raise error
        if self._gpus.is_prebound(gpu.pci):
            return False
        try:
            with self._telemetry.step("wait discovery"):
                async with asyncio.timeout_at(deadline):
                    await self._gpus.changed_since(self._gpus.serial)
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{gpu.name} ({gpu.uuid}) comes back from vfio, and NVML does not have it yet",
                "if it lasts, look for messages of NVRM in the node's kernel log",
                device=gpu.name,
            ) from error
        return True

    def is_current(self, snapshot: Snapshot) -> bool:
        """Whether the node's devices are still those of the snapshot."""
        return self._gpus.snapshot is snapshot

    def in_use(self) -> AbstractContextManager[bool]:
        """Keep NVML from being released during the block; False if it is released already."""
        return self._gate.passed()

    @asynccontextmanager
    async def locked(self, record: GpuClaimRecord, deadline: float) -> AsyncIterator[None]:
        """Hold the locks of the claim's GPUs for the block.

        Raises:
            RetryableError: `LockTimeout`.
        """
        hold = self.locks.hold(gpus_of(record), holder=str(record.ref), deadline=deadline)
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

    def check_free(self, record: GpuClaimRecord, driver_versions: DriverVersions) -> None:
        """Check that no other claim holds one of the devices. The caller holds the locks.

        Raises:
            DeviceInUseError: One does.
            PermanentError: `DriverMismatch`; `StateCorrupt`: it is unknown whether one does.
        """
        try:
            plan.check_free(record, self._claim_index, driver_versions)
        except DeviceInUseError as error:
            error.since = self._prepared_claims.held_since(error.holder.uid)
            raise
        plan.check_records_complete(
            record,
            self._prepared_claims.unreadable.values(),
            self._prepared_claims.incomplete_reason,
        )

    async def verify(
        self, snapshot: Snapshot, devices: Collection[GpuDeviceRecord], deadline: float
    ) -> None:
        """Return only if the devices work. What is made for a claim is verified by its changes.

        Raises:
            DriverError: As `GpuVerifier.verify`.
        """
        # A GPU may occur several times; of monitoring, less is asked.
        ordered = sorted(devices, key=lambda device: not device.is_admin)
        by_uuid = {device.uuid: device for device in ordered if not device.is_of_change}
        if not by_uuid:
            return
        with self._telemetry.step(
            "verify devices", {keys.HW_TYPE: keys.HW_TYPE_GPU, keys.HW_ID: tuple(by_uuid)}
        ):
            await self._verifier.verify(snapshot, tuple(by_uuid.values()), deadline)

    async def verify_changed(self, snapshot: Snapshot, record: GpuClaimRecord) -> None:
        """Verify a claim's devices when its changes are made, as long as that may take.

        They were verified before the first change; a claim without changes is not verified again.

        Raises:
            DriverError: As `verify`.
        """
        if record.steps:
            deadline = asyncio.get_running_loop().time() + _VERIFY_TIMEOUT_S
            await self.verify(snapshot, record.devices, deadline)

    async def _wait_resumed(
        self, ref: ClaimRef, deadline: float, notify: NotifyWaiting | None = None
    ) -> None:
        if not self._gate.is_open:
            with self._telemetry.step("wait nvml"):
                await self._gate.wait_open(ref, deadline, notify)

    async def _wait_described(self, devices: Collection[str], deadline: float) -> Snapshot:
        if not self._gpus.is_discovered:
            with self._telemetry.step("wait discovery"):
                await self._gpus.wait_discovered(deadline)
        if not self._gpus.is_complete:
            with self._telemetry.step("wait discovery") as span:
                if not await self._gpus.wait_described(devices, deadline):
                    span.discard()
        return self._gpus.usable(f"node {self._node}", devices)


def gpus_of(record: GpuClaimRecord) -> set[PciAddress]:
    """The GPUs whose locks an operation of the claim holds.

    Admin access needs none: a claim for monitoring that waits for a GPU stops no other claim.
    """
    held = {device.pci for device in record.devices if not device.is_admin}
    return held | {step.pci for step in record.left_modes}
