# SPDX-License-Identifier: Apache-2.0
"""Holds an NVML session while this instance stands by for another one.

So the GPUs stay initialised when the other instance ends: without persistence mode a GPU whose last
client has left takes seconds to start and loses its settings. With `DynamicMIG` it opens none: a
GPU that another process has open may not switch its MIG mode for a claim. And a release that cannot
use the node's driver is seen before the former one has ended. Nothing on the node is written.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from nvdra_api.errors import Reason, RetryableError
from nvdra_runtime.http.probes import Check, PassingRemark
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import CallObserver, NvmlError
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.nvml_sessions import DriverUnavailable, NvmlSession, NvmlSessions
from nvdra_gpu_plugin.hardware.probe_state import UNRESPONSIVE_S

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 1.0
"""Between two looks at the driver's files and at a release of the node."""

IsReleased = Callable[[], bool]
"""Whether an administrator wants NVML to be left alone on this node. Called on a worker thread."""


class StandbySession:
    """The session of an instance that stands by; a `kubeletplugin.standby.WarmUp`.

    Attributes:
        checks: The readiness check `driver`.
    """

    def __init__(
        self,
        host: Host,
        observe: CallObserver,
        is_released: IsReleased,
        hold: SessionHold,
        *,
        opens_gpus: bool,
    ) -> None:
        """Create it without opening NVML.

        Args:
            host: The node's files.
            observe: Called after every call.
            is_released: While it returns True, no session is held, and the instance is ready.
            hold: Held while a session is open; given up for a GPU that is taken from the driver.
            opens_gpus: Whether to keep the GPUs initialised.
        """
        self.checks: Mapping[str, Check] = {"driver": lambda: self._problem}
        self._host = host
        self._observe = observe
        self._is_released = is_released
        self._hold = hold
        self._opens_gpus = opens_gpus
        self._problem: str | None = "the driver has not been looked at yet"

    async def run(self) -> None:
        """Hold a session until cancelled.

        Raises:
            RetryableError: The driver was replaced. The process starts again, because glibc
                identifies a library by the path that it was loaded from.
        """
        async with Worker("standby-nvml") as nvml, Worker("standby-files") as files:
            sessions = NvmlSessions(nvml, self._observe, self._hold)
            try:
                while True:
                    await self._update(sessions, nvml, files)
                    await asyncio.sleep(_INTERVAL_S)
            finally:
                await sessions.close()

    async def _update(self, sessions: NvmlSessions, nvml: Worker, files: Worker) -> None:
        """Open, keep or close the session, as the node is now."""
        if await files.run(self._is_released):
            await sessions.close()
            self._problem = PassingRemark("NVML is not used: the node is released")
            return
        if await files.run(self._hold.is_in_the_way):
            await sessions.close()
            return
        try:
            found = await files.run(installation.read, self._host)
            session = sessions.current
            if session is None:
                session = await sessions.open(found)
                if self._opens_gpus:
                    await self._wake_gpus(session, nvml)
        except (OSError, DriverUnavailable) as error:
            self._problem = str(error)
            return
        if session.installation.library_id != found.library_id:
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                "the driver was replaced while this instance stood by",
                "it starts again with the new driver",
            )
        self._problem = None

    async def _wake_gpus(self, session: NvmlSession, nvml: Worker) -> None:
        """Attach the session to every GPU. One that fails or hangs is the active instance's matter.

        NVML initialises a GPU when its handle is asked for.
        """
        deadline = asyncio.get_running_loop().time() + UNRESPONSIVE_S
        for index in range(session.count):
            try:
                await nvml.run(session.nvml.handle_by_index, index, deadline=deadline)
            except (NvmlError, TimeoutError) as error:
                text = str(error) or "it does not answer"
                LOG.warning("A GPU is not kept initialised", index=index, error=text)
