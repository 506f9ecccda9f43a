# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of single claims, from the view of the engine."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_cdi.errors import CDIError, DiscoveryError, MissingCapabilitiesError
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.cdi.claim_spec_files import ClaimSpecFiles
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus

LOG = logs.logger(__name__)

_TIMEOUT_S: Final = 10.0
"""For a spec, whatever is left of the caller's time: work that has begun is finished."""


class ClaimSpecs:
    """`nvdra_runtime.claims.changes.ClaimFiles`: the specs of one node's claims."""

    def __init__(
        self, gpus: NodeGpus, specs: ClaimSpecFiles, files: Worker, telemetry: Telemetry
    ) -> None:
        self._gpus = gpus
        self._specs = specs
        self._files = files
        self._telemetry = telemetry

    async def completed(
        self, record: GpuClaimRecord, former: GpuClaimRecord | None
    ) -> GpuClaimRecord:
        """The same record: it says nothing of its spec."""
        del former
        return record

    @asynccontextmanager
    async def being_written(self, record: GpuClaimRecord) -> AsyncIterator[None]:
        """Write the claim's spec, if it needs one, before the block.

        Raises:
            PermanentError: `DeviceNodeMissing`: it cannot be written.
            RetryableError: `DeadlineExceeded`: the disk does not respond.
        """
        if record.has_own_spec:
            await self._write(record)
        yield

    @asynccontextmanager
    async def being_removed(self, record: GpuClaimRecord) -> AsyncIterator[None]:
        """Remove the claim's spec before the block.

        Raises:
            RetryableError: `DeviceNodeMissing`, `DeadlineExceeded`.
        """
        await self.withdraw(record)
        yield

    async def remove_others(self, claims: Collection[ClaimUID]) -> None:
        """Remove the specs of all claims but these. A failure is harmless: the next start does."""
        try:
            await self._files.run(self._specs.remove_others, claims)
        except (CDIError, OSError) as error:
            LOG.warning("The CDI spec of a claim cannot be removed", error=str(error))

    async def _write(self, record: GpuClaimRecord) -> None:
        snapshot = self._gpus.usable("this node")
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        try:
            with self._telemetry.step("write cdi"):
                await self._files.run(
                    self._specs.write, record, snapshot.spec, snapshot.inventory, deadline=deadline
                )
        except CDIError as error:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"the CDI spec of claim {record.ref} cannot be written: {error}",
                _spec_remedy(error),
                claim=str(record.ref),
            ) from error
        except TimeoutError as error:
            raise _disk_hangs() from error

    async def withdraw(self, record: GpuClaimRecord) -> None:
        """Remove the claim's spec, if it has one.

        Raises:
            RetryableError: `DeviceNodeMissing`, `DeadlineExceeded`.
        """
        if not record.has_own_spec:
            return
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        try:
            await self._files.run(self._specs.remove, record.uid, deadline=deadline)
        except CDIError as error:
            raise RetryableError(
                Reason.DEVICE_NODE_MISSING,
                f"the CDI spec of claim {record.ref} cannot be removed: {error}",
                "check that --cdi-root is a writable directory",
                claim=str(record.ref),
            ) from error
        except TimeoutError as error:
            raise _disk_hangs() from error


def _spec_remedy(error: CDIError) -> str:
    if isinstance(error, MissingCapabilitiesError):
        return installation.CAPABILITIES_REMEDY
    if isinstance(error, DiscoveryError):
        return (
            "check the driver's files and device nodes on the node; nvidia-modprobe -c0 -u makes "
            "device nodes"
        )
    return "check that --cdi-root is a writable directory with free space"


def _disk_hangs() -> RetryableError:
    return RetryableError(
        Reason.DEADLINE_EXCEEDED,
        "the CDI spec of the claim must be written or removed, which takes long",
        "check whether the disk of --cdi-root responds",
    )
