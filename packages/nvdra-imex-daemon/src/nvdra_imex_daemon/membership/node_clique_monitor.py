# SPDX-License-Identifier: Apache-2.0
"""Notices when the GPUs of the node are in another clique than the one that we have joined.

The plugin of the node writes their clique into the domain's directory. Our IMEX goes on as it is:
only a pod that is made again can join the other clique.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from nvdra_api.errors import DriverError
from nvdra_api.ids import CliqueID
from nvdra_runtime.telemetry import logs

LOG: Final = logs.logger(__name__)

INTERVAL_S: Final = 5.0
"""Reading a small file costs next to nothing."""


class NodeCliqueMonitor:
    """Compares the clique of the node with ours."""

    def __init__(
        self,
        own: CliqueID,
        read: Callable[[], Awaitable[CliqueID | None]],
        report: Callable[[CliqueID | None], Awaitable[None]],
    ) -> None:
        """Create a monitor; `run` runs it.

        Args:
            own: The clique that we have joined.
            read: Reads the clique of the node; None if it is not known.
            report: Gets the clique of the node if it is another one, else None.
        """
        self._own = own
        self._read = read
        self._report = report
        self._reported: CliqueID | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Look once; a report that fails is repeated by the next look."""
        now = await self._read()
        other = None if now is None or now == self._own else now
        if other == self._reported:
            return
        if other is not None:
            LOG.warning("The GPUs of this node have left our clique", own=self._own, now=other)
        try:
            await self._report(other)
        except DriverError as error:
            LOG.v(2, "Cannot say in which clique the GPUs of this node are", error=str(error))
            return
        self._reported = other
