# SPDX-License-Identifier: Apache-2.0
"""Tells the daemons of this node in which clique its GPUs are now, by a file in each's directory.

A daemon has the clique of the moment when its claim was prepared. It says on its pod, and the
controller on the domain, if that is not the node's any more.
Source: docs/decisions/cd-plugin.md, "What if the clique changes while a daemon runs?".
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID, CliqueID, DomainUID
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.node.file_worker import FileWorker

LOG: Final = logs.logger(__name__)

INTERVAL_S: Final = 5.0
"""A file that has the clique already is only read."""
_TIMEOUT_S: Final = 30.0


class CliqueFiles:
    """The files of the daemons that are prepared on this node."""

    def __init__(
        self,
        clique: Callable[[], CliqueID | None],
        prepared: Mapping[ClaimUID, DomainClaimRecord],
        directories: DomainDirectories,
        files: FileWorker,
    ) -> None:
        """Create it without writing.

        Args:
            clique: The clique of the node now; None while it is not known.
            prepared: The claims that are prepared.
            directories: The directories of domains.
            files: The thread for files.
        """
        self._clique = clique
        self._prepared = prepared
        self._directories = directories
        self._files = files

    async def run(self) -> None:
        """Keep the files true until cancelled."""
        while True:
            clique = self._clique()
            if clique is not None:
                for uid in self._domains():
                    await self._write(uid, clique)
            await asyncio.sleep(INTERVAL_S)

    def _domains(self) -> set[DomainUID]:
        records = self._prepared.values()
        return {record.domain for record in records if record.domain and not record.is_channel}

    async def _write(self, uid: DomainUID, clique: CliqueID) -> None:
        deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
        write = self._directories.write_node_clique
        try:
            await self._files.run(deadline, write, uid, clique)
        except DriverError as error:
            LOG.v(2, "Cannot tell a daemon the clique", domain=uid, error=str(error))
