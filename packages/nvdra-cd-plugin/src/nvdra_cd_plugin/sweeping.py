"""What nobody needs any more is removed, and the node's label kept right.

At the start, then every ten minutes. It begins once the records are known to be complete: what no
record names is nobody's then.
Source: spec/compute-domain.md §7.11, §14.2 (KW-37).
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import ClaimUID, DomainUID

from nvdra_cd_plugin.cdi_specs import SpecFiles
from nvdra_cd_plugin.disk import Disk
from nvdra_cd_plugin.domain_files import DomainFiles
from nvdra_cd_plugin.joining import Membership
from nvdra_cd_plugin.records import DomainHolding

LOG = logs.logger(__name__)

EVERY_S: Final = 600.0
_ROUND_S: Final = 30.0


class Sweeping:
    """Goes round."""

    def __init__(
        self,
        held: HeldClaims[DomainHolding],
        busy: Mapping[ClaimUID, DomainUID],
        is_complete: asyncio.Event,
        specs: SpecFiles,
        directories: DomainFiles,
        disk: Disk,
        joining: Membership | None,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            held: What is prepared.
            busy: What is being prepared.
            is_complete: Set once the records tell of everything that is held.
            specs: The CDI specs.
            directories: Those of domains.
            disk: Where both are.
            joining: The node's membership; None where the node is never labelled.
        """
        self._held = held
        self._busy = busy
        self._is_complete = is_complete
        self._specs = specs
        self._directories = directories
        self._disk = disk
        self._joining = joining

    async def run(self) -> None:
        """For ever."""
        await self._is_complete.wait()
        while True:
            # While a record cannot be read, nobody can tell what is not needed.
            if not self._held.unreadable and not self._held.doubt:
                await self._round(asyncio.get_running_loop().time() + _ROUND_S)
            await asyncio.sleep(EVERY_S)

    async def _round(self, deadline: float) -> None:
        """One thing that cannot be put right keeps no other from it."""
        for chore in (self._sweep_specs, self._sweep_directories, self._keep_label):
            try:
                await chore(deadline)
            except DriverError as error:
                LOG.warning("What is left over stays for now", error=str(error))

    async def _sweep_specs(self, deadline: float) -> None:
        await self._disk.run(deadline, self._specs.sweep, {*self._held, *self._busy})

    async def _sweep_directories(self, deadline: float) -> None:
        in_use = {holding.domain for holding in self._held.values()}
        kept = {*in_use, *self._busy.values()}
        gone = await self._disk.run(deadline, self._directories.sweep, kept)
        if gone:
            LOG.info("Directories of domains are removed", domains=gone)

    async def _keep_label(self, deadline: float) -> None:
        if self._joining is not None:
            await self._joining.keep(deadline)
