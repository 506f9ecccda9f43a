# SPDX-License-Identifier: Apache-2.0
"""Records of claims: written when a device is given, removed when it is taken back."""

from datetime import datetime

from nvdra_api.ids import DomainUID, NodeName
from nvdra_runtime.claims.prepare_result import PrepareResult
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_runtime.process.locks import KeyedLocks
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.claims import plan
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.node.file_worker import FileWorker


class RecordWriter:
    """Adds and removes the records of this node's claims."""

    def __init__(
        self,
        node: NodeName,
        prepared_claims: PreparedClaims[DomainClaimRecord],
        specs: SpecFiles,
        files: FileWorker,
        telemetry: Telemetry,
    ) -> None:
        self._node = node
        self._prepared_claims = prepared_claims
        self._specs = specs
        self._files = files
        self._telemetry = telemetry
        self._locks: KeyedLocks[str] = KeyedLocks()

    def check_free(self, record: DomainClaimRecord) -> None:
        """Refuse a device that another claim has, or that another claim may have.

        Raises:
            DeviceInUseError: Another claim has the device.
            PermanentError: `StateCorrupt`: it is unknown whether another claim has it.
        """
        try:
            plan.check_free(record, self._prepared_claims, self._node)
        except DeviceInUseError as error:
            error.since = self._prepared_claims.prepared_at(error.holder.uid)
            raise
        plan.check_records_complete(
            record,
            self._prepared_claims.unreadable.values(),
            self._prepared_claims.incomplete_reason,
        )

    async def add_if_free(self, record: DomainClaimRecord, deadline: float) -> PrepareResult:
        """Record the claim if no other claim has its device; return the answer to the kubelet.

        Raises:
            DriverError: As `check_free`; `LockTimeout`, `StateUnavailable`.
        """
        devices = (record.device.device,)
        async with self._locks.hold(devices, holder=str(record.ref), deadline=deadline):
            self.check_free(record)
            return await self.add(record)

    async def add(self, record: DomainClaimRecord) -> PrepareResult:
        """Record a claim that has its device already; return the answer to the kubelet.

        Raises:
            RetryableError: `StateUnavailable`.
        """
        with self._telemetry.step("commit state"):
            await self._prepared_claims.add(record.ref, record)
        return record.prepare_result()

    async def remove(self, record: DomainClaimRecord, deadline: float) -> None:
        """Remove the claim's CDI spec, then its record.

        Raises:
            RetryableError: `StateUnavailable`, `DeadlineExceeded`: the record stays.
        """
        await self._files.run(deadline, self._specs.remove, record.uid)
        with self._telemetry.step("commit state"):
            await self._prepared_claims.remove(record.uid)

    async def drop(self, record: DomainClaimRecord) -> None:
        """Remove the record of a claim that was never given anything.

        Raises:
            RetryableError: `StateUnavailable`: the record stays.
        """
        await self._prepared_claims.remove(record.uid)

    def is_recorded(self, record: DomainClaimRecord) -> bool:
        """Whether the claim has a record now."""
        return record.uid in self._prepared_claims

    def is_of_this_boot(self, record: DomainClaimRecord) -> bool:
        """Whether the claim was prepared since the node was booted."""
        return self._prepared_claims.is_of_this_boot(record.uid)

    def recorded_at(self, record: DomainClaimRecord) -> datetime:
        """When the claim was first recorded; it must have a record."""
        return self._prepared_claims.prepared_at(record.uid)

    def joined_at(self, uid: DomainUID) -> datetime | None:
        """When this node became a member of the domain; None without a channel of it."""
        channels = (each for each in self._prepared_claims.values() if each.is_channel)
        first = next((each for each in channels if each.domain == uid), None)
        return None if first is None else self.recorded_at(first)
