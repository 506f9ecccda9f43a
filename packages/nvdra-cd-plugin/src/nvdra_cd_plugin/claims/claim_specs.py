# SPDX-License-Identifier: Apache-2.0
"""What single claims get by CDI, from the view of the engine.

A workload gets the device nodes of its channels; on a node without a fabric it gets none. A daemon
gets the domain's directory, the driver's files and the right to manage IMEX.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_cd_plugin.cdi import edits, spec_files
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.domains import admission
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.membership.domain_spans import DomainSpans
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cd_plugin.node.imex_devices import ImexDevices

_TIMEOUT_S: Final = 10.0
"""For a claim's files, whatever is left of the caller's time: work that has begun is finished."""


class ClaimSpecs:
    """`nvdra_runtime.claims.changes.ClaimFiles`: the specs of one node's claims."""

    def __init__(
        self,
        devices: ImexDevices,
        directories: DomainDirectories,
        specs: SpecFiles,
        dev_root: Callable[[], DevRoot],
        files: FileWorker,
        spans: DomainSpans,
        telemetry: Telemetry,
    ) -> None:
        self._devices = devices
        self._directories = directories
        self._specs = specs
        self._dev_root = dev_root
        self._files = files
        self._spans = spans
        self._telemetry = telemetry

    async def completed(
        self, record: DomainClaimRecord, former: DomainClaimRecord | None
    ) -> DomainClaimRecord:
        """The record with the names of what it gets, unless it waits for its daemon.

        Raises:
            DriverError: `DeviceNodeMissing`, `StateUnavailable`, `DeadlineExceeded`.
        """
        del former
        if record.is_waiting:
            return record
        found = next((step.clique for step in record.steps), None)
        clique = record.clique if found is None else found
        own = spec_files.claim_cdi_name(record.uid, record.device.device)
        if not record.is_channel:
            return record.completed(clique, 0, (spec_files.BASE_CDI_NAME, own))
        if not clique:
            return record.completed(clique, 0, ())
        available = await self._files.run(_deadline(), self._devices.channel_count)
        count = admission.channel_count(record.to_domain(), record.mode, available)
        return record.completed(clique, count, (own,))

    @asynccontextmanager
    async def being_written(self, record: DomainClaimRecord) -> AsyncIterator[None]:
        """Write what the claim gets, with the device numbers of this moment, before the block.

        What is as it should be is not written again.

        Raises:
            DriverError: `DriverMismatch`, `DeviceNodeMissing`, `StateUnavailable`,
                `DeadlineExceeded`.
        """
        if not record.is_waiting:
            with self._telemetry.step("write cdi") as span:
                if not record.is_channel:
                    span.add_link(self._spans.link(record))
                await self._files.run(_deadline(), self._write, record)
        yield

    async def withdraw(self, record: DomainClaimRecord) -> None:
        """Remove the claim's spec if there is one.

        Raises:
            RetryableError: `StateUnavailable`, `DeadlineExceeded`.
        """
        await self._files.run(_deadline(), self._specs.remove, record.uid)

    @asynccontextmanager
    async def being_removed(self, record: DomainClaimRecord) -> AsyncIterator[None]:
        """Remove the claim's spec before the block.

        Raises:
            RetryableError: As `withdraw`.
        """
        await self.withdraw(record)
        yield

    def _write(self, record: DomainClaimRecord) -> None:
        if record.is_channel:
            if not record.channels:
                return
            channels = self._devices.channels(record.first_channel, record.channels)
            container_edits = edits.channels(self._dev_root(), channels)
        else:
            self._directories.create(record.domain)
            self._specs.write_base()
            container_edits = edits.daemon(
                self._dev_root(),
                record.to_domain(),
                record.clique,
                self._directories.path(record.domain),
                self._devices.management_capability() if record.clique else None,
            )
        self._specs.write(record.uid, record.device.device, container_edits)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _TIMEOUT_S
