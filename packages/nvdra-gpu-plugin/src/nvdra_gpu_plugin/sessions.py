"""The session with NVML: opened, and replaced when the driver has been.

A library is loaded once per file; a driver that is replaced in place is loaded beside the one that
was, and the process goes on. NVML is called on its own thread, so the loop never waits for it.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from nvdra_api.runtime.node.nvml import Nvml, NvmlError, Observe
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import Reason

from nvdra_gpu_plugin import discovery
from nvdra_gpu_plugin.installation import Installation
from nvdra_gpu_plugin.inventory import Fault

LOG = logs.logger(__name__)

_PATIENCE_S: Final = 10.0
"""NVML that takes longer to open is told of; it is waited for nevertheless."""

_CLOSE_S: Final = 1.0
"""How long a session may take to close; the kernel does it when we are gone."""


class NoDriver(Exception):
    """The node's GPUs cannot be used; `fault` says what is missing and what to do."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.fault = Fault("", text, reason)


@dataclass
class Session:
    """An open session.

    Attributes:
        nvml: The way to ask.
        installation: From what it was opened.
        driver: The versions.
        count: Boards that NVML shows.
        is_over: A call said that there is no driver behind it any more.
    """

    nvml: Nvml
    installation: Installation
    driver: discovery.Driver
    count: int
    is_over: bool = False


class Sessions:
    """One session at a time.

    Attributes:
        current: The open one; None before the first, and between two.
    """

    def __init__(self, worker: Worker, observe: Observe) -> None:
        self.current: Session | None = None
        self._worker = worker
        self._observe = observe
        self._opening: asyncio.Future[Session] | None = None
        self._library: tuple[object, ...] = ()
        self._renewal = -1

    @property
    def is_opening(self) -> bool:
        """Whether NVML still owes us an answer to being opened."""
        return self._opening is not None

    async def open(self, found: Installation) -> Session:
        """Open a session; the one before is closed or let go.

        Raises:
            NoDriver: NVML does not work, or does not answer yet: then the next call waits on.
        """
        if self._opening is None:
            if found.loadable != self._library:
                self._library, self._renewal = found.loadable, self._renewal + 1
            self._opening = self._worker.start(_opened, found, self._observe, self._renewal)
        await asyncio.wait((self._opening,), timeout=_PATIENCE_S)
        if not self._opening.done():
            raise NoDriver(
                Reason.DEADLINE_EXCEEDED,
                f"NVML does not answer: opening it takes longer than {_PATIENCE_S:.0f} s; look for "
                "Xid messages in the node's kernel log; nvidia-smi on the node hangs likewise",
            )
        opening, self._opening = self._opening, None
        try:
            self.current = opening.result()
        except NvmlError as error:
            raise NoDriver(Reason.DRIVER_MISMATCH, str(error)) from error
        return self.current

    async def close(self) -> None:
        """End the session; nobody is in a call of it."""
        session, self.current = self.current, None
        if session is None:
            return
        deadline = asyncio.get_running_loop().time() + _CLOSE_S
        try:
            await self._worker.run(session.nvml.close, deadline=deadline)
        except (NvmlError, TimeoutError) as error:
            LOG.warning("NVML did not close its session", error=str(error) or "no answer")

    def let_go(self) -> None:
        """Forget the session without closing it: a call hangs in it."""
        self.current = None


def _opened(found: Installation, observe: Observe, renewal: int) -> Session:
    nvml = Nvml.load(found.library, observe, renewal)
    try:
        return Session(nvml, found, discovery.driver(nvml), nvml.count())
    except NvmlError:
        nvml.close()
        raise
