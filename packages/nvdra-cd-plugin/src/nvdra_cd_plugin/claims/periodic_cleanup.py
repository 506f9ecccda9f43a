# SPDX-License-Identifier: Apache-2.0
"""Removes files that no claim needs, and corrects the node's label.

It runs at the start and then every ten minutes. It starts only when the records are known to be
complete, because what no record names is not needed then.

Source: docs/reference/compute-domain.md, "Background loops", "Races and correctness" (KW-37).
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID, DomainUID
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.process import background_tasks
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.membership.node_membership import NodeMembership
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cd_plugin.node.reference_checkpoint import ReferenceCheckpoint

LOG = logs.logger(__name__)

INTERVAL_S: Final = 600.0
_CHECKPOINT_INTERVAL_S: Final = 5.0
"""As of the GPU plugin. A way back to the reference driver does not take ten minutes."""
_TIMEOUT_S: Final = 30.0
"""For one run."""


class PeriodicCleanup:
    """Cleans up the node periodically."""

    def __init__(
        self,
        prepared_claims: PreparedClaims[DomainClaimRecord],
        in_progress: Mapping[ClaimUID, DomainUID],
        records_complete: asyncio.Event,
        specs: SpecFiles,
        directories: DomainDirectories,
        reference_checkpoint: ReferenceCheckpoint,
        files: FileWorker,
        membership: NodeMembership | None,
    ) -> None:
        """Create it without removing anything.

        Args:
            prepared_claims: The claims that are prepared.
            in_progress: The claims that are being prepared, with their domains.
            records_complete: Set once every claim with a device has a record.
            specs: The CDI specs.
            directories: The directories of domains.
            reference_checkpoint: What the reference driver has left.
            files: The thread for files.
            membership: The node's membership; None where the node is never labelled.
        """
        self._prepared_claims = prepared_claims
        self._in_progress = in_progress
        self._records_complete = records_complete
        self._specs = specs
        self._directories = directories
        self._reference_checkpoint = reference_checkpoint
        self._files = files
        self._membership = membership

    async def run(self) -> None:
        """Run until cancelled."""
        await self._records_complete.wait()
        while True:
            if self._knows_all_claims():
                await self._run_once(asyncio.get_running_loop().time() + _TIMEOUT_S)
            await asyncio.sleep(INTERVAL_S)

    async def remove_reference_checkpoint(self) -> None:
        """Remove the reference driver's checkpoint once none of its claims is prepared."""
        await self._records_complete.wait()
        while True:
            if self._knows_all_claims():
                deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
                prepared = {*self._prepared_claims, *self._in_progress}
                remove = self._reference_checkpoint.remove_unless_used
                try:
                    if await self._files.run(deadline, remove, prepared):
                        return
                except DriverError as error:
                    LOG.warning(
                        "The checkpoint of another driver cannot be removed", error=str(error)
                    )
            await asyncio.sleep(_CHECKPOINT_INTERVAL_S)

    def _knows_all_claims(self) -> bool:
        """Whether every record can be read; otherwise it is unknown what a claim needs."""
        return not self._prepared_claims.unreadable and not self._prepared_claims.incomplete_reason

    async def _run_once(self, deadline: float) -> None:
        """Carry out every task; one that fails does not prevent the others."""
        for task in (self._remove_specs, self._remove_directories, self._correct_label):
            try:
                with background_tasks.contain("Cleanup failed and will be repeated"):
                    await task(deadline)
            except DriverError as error:
                LOG.warning("Cleanup failed and will be repeated", error=str(error))

    async def _remove_specs(self, deadline: float) -> None:
        needed = {*self._prepared_claims, *self._in_progress}
        await self._files.run(deadline, self._specs.remove_stale, needed)

    async def _remove_directories(self, deadline: float) -> None:
        prepared = {record.domain for record in self._prepared_claims.values()}
        needed = {*prepared, *self._in_progress.values()}
        removed = await self._files.run(deadline, self._directories.remove_stale, needed)
        if removed:
            LOG.info("Removed directories of domains", domains=removed)

    async def _correct_label(self, deadline: float) -> None:
        if self._membership is not None:
            await self._membership.reconcile_label(deadline)
