# SPDX-License-Identifier: Apache-2.0
"""Opens the NVML session, and replaces it when the driver is replaced.

A process loads a library once per file. A driver that was replaced is loaded beside the former one,
so the plugin need not restart. NVML is called on a thread of its own and never blocks the event
loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

from nvdra_api.errors import Reason
from nvdra_api.ids import PciAddress
from nvdra_runtime.node.nvml import CallObserver, Nvml, NvmlError, ReturnCode
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.inventory import Fault
from nvdra_gpu_plugin.driver.installation import DriverInstallation

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOG = logs.logger(__name__)

_OPEN_TIMEOUT_S: Final = 10.0
"""After this time it is reported that NVML does not respond. The plugin keeps waiting for it."""

_SWITCH_TIMEOUT_S: Final = 5.0
"""How long a session waits while a GPU is taken from the driver, which takes a second at most
unless the kernel hangs."""

_CLOSE_TIMEOUT_S: Final = 1.0
"""How long closing a session may take. The kernel closes it when the process ends."""


class DriverUnavailable(Exception):
    """The node's GPUs cannot be used; `fault` says why and what to do."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.fault = Fault("", text, reason)


class DriverVersions(NamedTuple):
    """The versions that NVML reports."""

    driver: str
    cuda: str


@dataclass
class NvmlSession:
    """An open session.

    Attributes:
        nvml: The opened library.
        installation: The driver that it was opened from.
        versions: The driver's versions.
        count: Number of GPUs that NVML reports.
        excluded: GPUs that the driver's files list and the kernel module leaves alone.
        is_lost: Whether a call has failed because the driver is gone.
    """

    nvml: Nvml
    installation: DriverInstallation
    versions: DriverVersions
    count: int
    excluded: tuple[PciAddress, ...] = ()
    is_lost: bool = False

    @property
    def pci_addresses(self) -> tuple[PciAddress, ...] | None:
        """The PCI addresses in the order of NVML's indices, according to the driver's files.

        None if the files do not list the same GPUs as NVML.
        """
        return self._listed if len(self._listed) == self.count else None

    @property
    def has_all_gpus(self) -> bool:
        """Whether NVML reports every GPU that the kernel module drives."""
        return self.count >= len(self._listed)

    @property
    def _listed(self) -> tuple[PciAddress, ...]:
        return tuple(pci for pci in self.installation.gpus if pci not in self.excluded)


class NvmlSessions:
    """Opens one session at a time.

    Attributes:
        current: The open session; None if there is none.
        has_abandoned: Whether a session of this process could not be closed. Its files stay open
            until the process ends.
    """

    def __init__(
        self, worker: Worker, observe: CallObserver, hold: SessionHold | None = None
    ) -> None:
        """Create it without a session.

        Args:
            worker: The thread for NVML.
            observe: Called after every call.
            hold: Held while a session is open; None where no GPU is taken from the driver.
        """
        self.current: NvmlSession | None = None
        self.has_abandoned = False
        self._worker = worker
        self._observe = observe
        self._hold = hold
        self._opening: asyncio.Future[NvmlSession] | None = None
        self._library: tuple[object, ...] = ()
        self._library_count = -1

    @property
    def is_opening(self) -> bool:
        """Whether NVML has not yet responded to being opened."""
        return self._opening is not None

    async def open(self, found: DriverInstallation) -> NvmlSession:
        """Open a session. The caller has closed or abandoned the former one.

        Raises:
            DriverUnavailable: NVML fails, or does not respond. In that case the next call
                continues to wait.
        """
        if self._opening is None:
            if found.library_id != self._library:
                self._library, self._library_count = found.library_id, self._library_count + 1
            self._opening = self._worker.submit(
                _open_session, found, self._observe, self._library_count, self._hold
            )
        await asyncio.wait((self._opening,), timeout=_OPEN_TIMEOUT_S)
        if not self._opening.done():
            raise DriverUnavailable(
                Reason.DEADLINE_EXCEEDED,
                f"NVML does not answer: opening it takes longer than {_OPEN_TIMEOUT_S:.0f} s; look "
                "for Xid messages in the node's kernel log; nvidia-smi on the node hangs too",
            )
        opening, self._opening = self._opening, None
        try:
            self.current = opening.result()
        except NvmlError as error:
            raise DriverUnavailable(Reason.DRIVER_MISMATCH, str(error)) from error
        return self.current

    async def ask(self, function: Callable[[Nvml, *Ts], T], *arguments: *Ts, timeout_s: float) -> T:
        """Call `function` with the open session, on the thread that opens and closes it.

        For calls about a GPU that the session does not list, and that has no thread therefore.

        Raises:
            NvmlError: That of the function; `UNINITIALIZED`: there is no session.
            TimeoutError: It does not return.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        return await self._worker.run(self._call, function, arguments, deadline=deadline)

    def _call(self, function: Callable[[Nvml, *Ts], T], arguments: tuple[*Ts]) -> T:
        session = self.current
        if session is None:
            raise NvmlError(ReturnCode.UNINITIALIZED, function.__name__, "", "NVML is closed")
        return function(session.nvml, *arguments)

    async def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Close the session. No call may be in progress."""
        session, self.current = self.current, None
        if session is None:
            return
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            await self._worker.run(session.nvml.close, deadline=deadline)
        except (NvmlError, TimeoutError) as error:
            self.has_abandoned = True
            LOG.warning("The NVML session cannot be closed", error=str(error) or "no answer")
        else:
            if self._hold is not None:
                self._hold.release()

    def abandon(self) -> None:
        """Forget the session without closing it, because a call of it hangs."""
        if self.current is None:
            return
        LOG.warning(
            "An NVML session is left open, because a call of it does not return. If a GPU is "
            "missing from now on, restart the plugin"
        )
        self.has_abandoned = True
        self.current = None


def _open_session(
    found: DriverInstallation,
    observe: CallObserver,
    library_count: int,
    hold: SessionHold | None,
) -> NvmlSession:
    if hold is not None and not hold.acquire_within(_SWITCH_TIMEOUT_S):
        raise DriverUnavailable(
            Reason.DEADLINE_EXCEEDED,
            "a GPU is being taken from the NVIDIA driver, so NVML is not opened; if this lasts, "
            "the kernel cannot unbind a GPU: the command status of the GPU plugin names it",
        )
    try:
        return _load_session(found, observe, library_count)
    except NvmlError:
        if hold is not None:
            hold.release()
        raise


def _load_session(
    found: DriverInstallation, observe: CallObserver, library_count: int
) -> NvmlSession:
    nvml = Nvml.load(found.library, observe, library_count)
    try:
        return NvmlSession(
            nvml, found, _driver_versions(nvml), nvml.device_count(), nvml.excluded_gpus()
        )
    except NvmlError:
        nvml.close()
        raise


def _driver_versions(nvml: Nvml) -> DriverVersions:
    cuda = nvml.cuda_driver_version()
    return DriverVersions(nvml.driver_version(), f"{cuda // 1000}.{cuda % 1000 // 10}")
