# SPDX-License-Identifier: Apache-2.0
"""Looks for the node's driver while this instance stands by for another one.

So a release that cannot find the driver is seen before the former one has ended, which goes on. The
clique that the former one knew says nothing about that. NVML is not opened.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from nvdra_runtime.http.probes import Check
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import CallObserver
from nvdra_runtime.process.worker import Worker

from nvdra_cd_plugin.fabric import nvml_query

_INTERVAL_S: Final = 1.0


class StandbyCheck:
    """The look of an instance that stands by; a `kubeletplugin.standby.WarmUp`.

    Attributes:
        checks: The readiness check `driver`.
    """

    def __init__(self, host: Host, _observe: CallObserver) -> None:
        """Create it without looking.

        Args:
            host: Where the driver's files are.
        """
        self.checks: Mapping[str, Check] = {"driver": lambda: self._problem}
        self._host = host
        self._problem: str | None = "the driver has not been looked for yet"

    async def run(self) -> None:
        """Look every second until cancelled."""
        async with Worker("standby-files") as files:
            while True:
                self._problem = await files.run(self._look)
                await asyncio.sleep(_INTERVAL_S)

    def _look(self) -> str | None:
        try:
            nvml_query.find_library(self._host)
        except OSError as error:
            return str(nvml_query.driver_error(error))
        return None
