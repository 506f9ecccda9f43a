# SPDX-License-Identifier: Apache-2.0
"""The device metadata files of the node's claims, from the view of claims.

A claim that asks for them is refused if they cannot be written: a container that reads its devices
from them would fail later, and it would be unknown why. What changes a record afterwards, as after
a reboot, has them written again here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ResourceClaim
from nvdra_cdi.errors import CDIError
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.record_recovery import RecordRecovery
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.cdi.metadata_files import MetadataFiles
from nvdra_gpu_plugin.claims import metadata_plan
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory

LOG = logs.logger(__name__)

_TIMEOUT_S: Final = 10.0
"""For the files of a claim, whatever is left of the caller's time: they are small."""


class ClaimMetadata:
    """The device metadata of one node's claims."""

    def __init__(
        self,
        gates: FeatureGates,
        metadata_files: MetadataFiles,
        files: Worker,
        prepared_claims: PreparedClaims[GpuClaimRecord],
        telemetry: Telemetry,
    ) -> None:
        """Create it; nothing is written before `run`, or before a claim is.

        Args:
            gates: Whether claims get metadata. Those that have some keep it.
            metadata_files: Their files.
            files: The thread for files.
            prepared_claims: The claims of this node.
            telemetry: Where the writing is a step.
        """
        self._is_enabled = gates.is_enabled(Feature.DEVICE_METADATA)
        self._numa_as_list = gates.is_enabled(Feature.LIST_ATTRIBUTES)
        self._metadata_files = metadata_files
        self._files = files
        self._prepared_claims = prepared_claims
        self._telemetry = telemetry
        self._written: dict[ClaimUID, GpuClaimRecord] = {}
        self._unwritten: set[ClaimUID] = set()
        self._waiting: dict[ClaimUID, None] = {}
        self._woken = asyncio.Event()
        prepared_claims.on_prepared(self._note)

    def planned(
        self, record: GpuClaimRecord, claim: ResourceClaim, inventory: Inventory
    ) -> GpuClaimRecord:
        """The record of a claim that is to be prepared, with metadata if the gate is on."""
        if not self._is_enabled:
            return record
        return self.recovered(record, claim, inventory)

    def recovered(
        self, record: GpuClaimRecord, claim: ResourceClaim, inventory: Inventory
    ) -> GpuClaimRecord:
        """The record of a claim that was answered with metadata, whatever the gate is now."""
        return metadata_plan.with_metadata(
            record, claim, inventory, numa_as_list=self._numa_as_list
        )

    def planned_again(self, record: GpuClaimRecord, inventory: Inventory) -> GpuClaimRecord:
        """The record of a prepared claim with today's attributes of its devices."""
        return metadata_plan.with_present_attributes(
            record, inventory, numa_as_list=self._numa_as_list
        )

    async def completed(
        self, record: GpuClaimRecord, former: GpuClaimRecord | None
    ) -> GpuClaimRecord:
        """The record with a generation of its own, if its files say something else than before."""
        return record if former is None else metadata_plan.with_generation(record, former)

    async def withdraw(self, record: GpuClaimRecord) -> None:
        """Nothing: the files tell containers about devices, and give them none."""

    @asynccontextmanager
    async def being_written(self, record: GpuClaimRecord) -> AsyncIterator[None]:
        """Write the files of a claim while the block records it.

        A start after a crash in between writes the files of a claim with a record, and removes
        those of one without.

        Raises:
            PermanentError: `DeviceNodeMissing`: they cannot be written.
            RetryableError: `DeadlineExceeded`: the disk does not respond.
        """
        if record.metadata is None:
            yield
            return
        self._written[record.uid] = record
        self._unwritten.discard(record.uid)
        writing = self._files.submit(self._metadata_files.write, record)
        try:
            yield
        finally:
            await self._finish(record, writing)

    async def _finish(self, record: GpuClaimRecord, writing: asyncio.Future[None]) -> None:
        try:
            with self._telemetry.step("write metadata"):
                async with asyncio.timeout(_TIMEOUT_S):
                    await writing
        except (CDIError, OSError) as error:
            self._written.pop(record.uid, None)
            self._unwritten.add(record.uid)
            if isinstance(error, TimeoutError):
                raise _disk_hangs() from error
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"the device metadata of claim {record.ref} cannot be written: {error}",
                "check that --cdi-root and the plugin's directory are writable and have free space",
                claim=str(record.ref),
            ) from error

    @asynccontextmanager
    async def being_removed(self, record: GpuClaimRecord) -> AsyncIterator[None]:
        """Remove the files of a claim: what mounts them before the block, which removes the record.

        The next start removes files that cannot be removed while the block runs.

        Raises:
            RetryableError: `DeviceNodeMissing`, `DeadlineExceeded`: what mounts them cannot be
                removed.
        """
        if record.metadata is None:
            yield
            return
        self._written.pop(record.uid, None)
        self._waiting.pop(record.uid, None)
        await self._remove_mounts(record)
        self._unwritten.discard(record.uid)
        removing = self._files.submit(self._metadata_files.remove_documents, record)
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await removing
            except OSError as error:
                LOG.warning("Device metadata stays until the next start", error=str(error))

    async def _remove_mounts(self, record: GpuClaimRecord) -> None:
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        try:
            await self._files.run(self._metadata_files.remove_mounts, record, deadline=deadline)
        except OSError as error:
            if record.uid in self._unwritten:  # the claim is refused, and has no pod
                LOG.warning("Device metadata stays until the next start", error=str(error))
                return
            if isinstance(error, TimeoutError):
                raise _disk_hangs() from error
            raise RetryableError(
                Reason.DEVICE_NODE_MISSING,
                f"the device metadata of claim {record.ref} cannot be removed: {error}",
                "check that --cdi-root and the plugin's directory are writable",
                claim=str(record.ref),
            ) from error

    async def run(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Keep the files as the records say. Run until cancelled."""
        await background_tasks.run_all(
            metadata=self._write_changes, metadata_start=partial(self._clean_up, recovery)
        )

    async def _clean_up(self, recovery: RecordRecovery[GpuClaimRecord]) -> None:
        """Write what is missing; remove what no claim has, once records are complete."""
        try:
            await self._files.run(self._metadata_files.restore)
        except OSError as error:  # the file restorer tries again
            LOG.warning("Device metadata cannot be written", error=str(error))
        await recovery.done.wait()
        kept = tuple(self._prepared_claims.values())
        try:
            await self._files.run(self._metadata_files.remove_others, kept)
        except OSError as error:
            LOG.warning("Device metadata cannot be removed", error=str(error))

    def _note(self, uid: ClaimUID) -> None:
        """Have the files written again if a record was changed by others than those who write."""
        record = self._prepared_claims[uid]
        if record.metadata is not None and self._written.get(uid) is not record:
            self._waiting[uid] = None
            self._woken.set()

    async def _write_changes(self) -> None:
        while True:
            while not self._waiting:
                self._woken.clear()
                await self._woken.wait()
            uid = next(iter(self._waiting))
            del self._waiting[uid]
            record = self._prepared_claims.get(uid)
            if record is None or self._prepared_claims.is_started(uid):
                continue
            try:  # the file restorer tries again
                with background_tasks.contain(
                    "Device metadata cannot be written", claim=str(record.ref)
                ):
                    async with self.being_written(record):
                        pass
            except DriverError as error:
                LOG.warning(error.message, claim=str(record.ref))


def prepared_earlier(prepared_claims: PreparedClaims[GpuClaimRecord]) -> list[GpuClaimRecord]:
    """The claims that an earlier process has prepared, the oldest one first."""
    answers = [
        each for each in prepared_claims.values() if not prepared_claims.is_started(each.uid)
    ]
    return sorted(answers, key=lambda record: prepared_claims.prepared_at(record.uid))


def _disk_hangs() -> RetryableError:
    return RetryableError(
        Reason.DEADLINE_EXCEEDED,
        "the device metadata of the claim must be written or removed, which takes long",
        "check whether the disks of --cdi-root and of the plugin's directory respond",
    )
