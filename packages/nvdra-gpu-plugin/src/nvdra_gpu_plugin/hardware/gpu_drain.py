# SPDX-License-Identifier: Apache-2.0
"""Has no new client open a GPU that is about to leave its driver, and lets clients in again.

Persistence mode goes first: nvidia-persistenced has the GPU open, and a GPU in that mode is not
drained. Then the driver refuses new clients of the GPU, and keeps those that it has. Both is done
on the thread of the GPU. A session that begins meanwhile does not list a drained GPU; it has no
thread then, and is named by its address on the thread that opens NVML.

A driver that cannot drain, or may not, is no reason to refuse a GPU: then a client that comes at
the wrong moment is waited for (`Binder`). Nor is a driver that cannot be asked a reason to keep a
claim: with its unload, or the reboot, both states end.
"""

import asyncio
from typing import Final, NamedTuple

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import GpuUUID, PciAddress
from nvdra_runtime.node import nvml_clients
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.steps import Persistence
from nvdra_gpu_plugin.driver import persistenced
from nvdra_gpu_plugin.driver.persistenced import PersistencedError
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges
from nvdra_gpu_plugin.hardware.probe_state import Status

LOG = logs.logger(__name__)

RETURN_S: Final = 15.0
"""How long NVML may take to list a GPU again. Starting one takes 1 to 3 s."""

_RETRY_S: Final = 0.2
"""Between two attempts to end draining, while NVML is opened."""
_OF_GPU: Final = frozenset(
    {
        ReturnCode.GPU_IS_LOST,
        ReturnCode.IN_USE,
        ReturnCode.RESET_REQUIRED,
        ReturnCode.TIMEOUT,
    }
)
"""Errors that say something of the GPU, not of the call. `IN_USE`: another program drains it."""
_SESSION_S: Final = 5.0
"""How long a session is waited for, and an answer of a GPU that it does not list."""


class ClientAccess(NamedTuple):
    """How a GPU treats clients.

    Attributes:
        persistence: What keeps it running without any; None if that is not known.
        is_drained: Whether it takes no new ones; None if the driver does not say it.
    """

    persistence: Persistence | None = None
    is_drained: bool | None = None


class GpuDrain:
    """The GPUs of one node."""

    def __init__(self, gpus: GpuChanges, monitor: DeviceMonitor, host: Host) -> None:
        """Create it without any effect.

        Args:
            gpus: Calls functions on the threads of GPUs.
            monitor: Has the session.
            host: Where the socket of nvidia-persistenced is.
        """
        self._gpus = gpus
        self._monitor = monitor
        self._host = host
        self._reported: set[PciAddress] = set()

    async def inspect(self, pci: PciAddress, device: str) -> ClientAccess:
        """How a GPU, which the NVIDIA driver has, treats clients now.

        Raises:
            DriverError: The GPU does not answer, or has not described itself yet.
        """
        gpu = await self._listed(pci, device)
        if gpu is None:
            self._report(pci, device, "NVML does not list it")
            return ClientAccess()
        return await self._gpus.run(gpu, device, _inspect, self._host, pci)

    async def begin(self, pci: PciAddress, device: str, former: ClientAccess) -> None:
        """End persistence mode and drain the GPU, as far as that is not so already.

        What is not in `former` is not changed, because it could not be restored.

        Raises:
            DriverError: `VfioDeviceBusy`: nvidia-persistenced does not let go of it, or another
                program drains it; the GPU does not answer.
        """
        if former == ClientAccess():
            return
        gpu = await self._listed(pci, device)
        if gpu is None:  # drained by an attempt that was interrupted, or gone from the driver
            return
        obstacle = await self._gpus.run(gpu, device, _begin, self._host, pci, device, former)
        if obstacle:
            self._report(pci, device, obstacle)

    async def end(self, pci: PciAddress, device: str, former: ClientAccess) -> bool:
        """Have the GPU, which the NVIDIA driver has, be drained only if it was before.

        What NVML does not let be restored is reported.

        Returns:
            Whether NVML must be opened anew, because it does not list the GPU.
        """
        if former.is_drained is None or self._is_driver_away:
            return False
        error: Exception = TimeoutError()
        try:
            async with asyncio.timeout(RETURN_S):
                while True:
                    try:
                        return await self._end(pci, device, is_drained=former.is_drained)
                    except (DriverError, NvmlError, TimeoutError) as failure:
                        error = failure
                    if self._is_driver_away:
                        return False
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            LOG.warning(
                "It is not known whether a GPU takes clients again; if it is missing on its node, "
                "it is drained until the driver is loaded again",
                device=device,
                pci=pci,
                error=str(error) or "no answer",
            )
            return False

    async def _end(self, pci: PciAddress, device: str, *, is_drained: bool) -> bool:
        gpu = await self._listed(pci, device)
        if gpu is not None:
            await self._gpus.run(gpu, device, _end, pci, is_drained)
            return False
        ask = self._monitor.session.nvml.ask
        return await ask(_end_by_address, pci, is_drained, timeout_s=_SESSION_S)

    async def keep_running(self, pci: PciAddress, device: str, former: ClientAccess) -> None:
        """Restore persistence mode, once NVML lists the GPU."""
        if former.persistence in (None, "off") or self._is_driver_away:
            return
        by_daemon = former.persistence == "daemon"
        try:
            async with asyncio.timeout(RETURN_S):
                gpu = await self._wait_listed(pci)
            await self._gpus.run(gpu, device, _keep_running, self._host, pci, by_daemon)
        except (DriverError, TimeoutError) as error:
            LOG.warning(
                "Persistence mode of a GPU cannot be restored; nvidia-smi -pm 1 does it",
                device=device,
                pci=pci,
                error=str(error) or "NVML does not list it",
            )

    @property
    def _is_driver_away(self) -> bool:
        """Whether NVML cannot be used: there is no driver, or another one than the library's."""
        nvml = self._monitor.session.nvml
        has_fault = self._monitor.state.node_fault is not None
        return nvml.current is None and not nvml.is_opening and has_fault

    async def _listed(self, pci: PciAddress, device: str) -> GpuUUID | None:
        """The GPU with this address in the open session; None if it is not there.

        Raises:
            RetryableError: A session is being opened, or a GPU has not described itself.
        """
        session = self._monitor.session
        try:
            async with asyncio.timeout(_SESSION_S):
                await self._monitor.discovered.wait()
                await session.is_usable.wait()
        except TimeoutError as error:
            raise _not_yet(device, "NVML is being opened") from error
        if (gpu := self._find(pci)) is not None:
            return gpu
        if any(probe.status is Status.AWAITED for probe in session.probes):
            raise _not_yet(device, f"a GPU, maybe {pci}, has not described itself")
        return None

    def _find(self, pci: PciAddress) -> GpuUUID | None:
        session = self._monitor.session
        if session.nvml.current is None:  # the probes of the former session are still there
            return None
        gpus = (probe.gpu for probe in session.probes if probe.status is not Status.AWAITED)
        return next((gpu.uuid for gpu in gpus if gpu is not None and gpu.pci == pci), None)

    async def _wait_listed(self, pci: PciAddress) -> GpuUUID:
        serial = self._monitor.serial
        while (gpu := self._find(pci)) is None:
            serial = await self._monitor.changed_since(serial)
        return gpu

    def _report(self, pci: PciAddress, device: str, why: str) -> None:
        """Say once of a GPU that new clients cannot be kept away from it."""
        if pci in self._reported:
            return
        self._reported.add(pci)
        LOG.warning(
            "A GPU is not drained before it changes its driver: a process that opens it at this "
            "moment is waited for",
            device=device,
            pci=pci,
            error=why,
        )


def _not_yet(device: str, why: str) -> RetryableError:
    remedy = "this continues by itself"
    return RetryableError(Reason.DEADLINE_EXCEEDED, f"{device}: {why}", remedy, device=device)


def _inspect(nvml: Nvml, gpu: DeviceHandle, host: Host, pci: PciAddress) -> ClientAccess:
    persistence = _persistence(nvml, gpu, host, pci)
    try:
        return ClientAccess(persistence, nvml_clients.is_drained(nvml, pci))
    except NvmlError as error:
        if not _is_refused(error):
            raise
        return ClientAccess(persistence)


def _persistence(nvml: Nvml, gpu: DeviceHandle, host: Host, pci: PciAddress) -> Persistence | None:
    try:
        if persistenced.is_keeping(host, pci):
            return "daemon"
    except PersistencedError as error:
        LOG.warning("The persistence mode of a GPU is not known", pci=pci, error=str(error))
    is_persistent = nvml.is_persistent(gpu)
    return None if is_persistent is None else "driver" if is_persistent else "off"


def _begin(
    nvml: Nvml, gpu: DeviceHandle, host: Host, pci: PciAddress, device: str, former: ClientAccess
) -> str:
    """End persistence mode, and drain the GPU. Returns why the driver does not do it, or ""."""
    if former.persistence == "daemon":
        _end_persistence_of_daemon(host, pci, device)
    try:
        if former.persistence in ("daemon", "driver") and nvml.is_persistent(gpu):
            nvml_clients.set_persistent(nvml, gpu, is_on=False)
        if former.is_drained is not None and not nvml_clients.is_drained(nvml, pci):
            nvml_clients.set_drained(nvml, pci, is_on=True)
    except NvmlError as error:
        if error.code == ReturnCode.IN_USE:
            raise RetryableError(
                Reason.VFIO_DEVICE_BUSY,
                f"{device} ({pci}) is in use: another program drains it, or keeps it in "
                "persistence mode",
                "end what works on the GPUs of this node",
                device=device,
            ) from error
        if not _is_refused(error):
            raise
        return str(error)
    return ""


def _end_persistence_of_daemon(host: Host, pci: PciAddress, device: str) -> None:
    try:
        if persistenced.is_keeping(host, pci):
            persistenced.keep(host, pci, is_on=False)
    except PersistencedError as error:
        raise RetryableError(
            Reason.VFIO_DEVICE_BUSY,
            f"{device} ({pci}) is kept open by nvidia-persistenced: {error}",
            "stop nvidia-persistenced on this node, or restart it",
            device=device,
        ) from error


def _end(nvml: Nvml, _: DeviceHandle, pci: PciAddress, is_drained: bool) -> None:
    _end_by_address(nvml, pci, is_drained)


def _end_by_address(nvml: Nvml, pci: PciAddress, is_drained: bool) -> bool:
    """Have the drain state as before. Returns whether it was another one."""
    try:
        if nvml_clients.is_drained(nvml, pci) == is_drained:
            return False
        nvml_clients.set_drained(nvml, pci, is_on=is_drained)
    except NvmlError as error:
        # The driver does not have the GPU, and with its record of it the state has ended.
        if error.code == ReturnCode.NOT_FOUND or _is_refused(error):
            return False
        raise
    return True


def _keep_running(
    nvml: Nvml, gpu: DeviceHandle, host: Host, pci: PciAddress, by_daemon: bool
) -> None:
    """Restore persistence mode. What nvidia-persistenced cannot do, the kernel module does."""
    try:
        if by_daemon and persistenced.keep(host, pci, is_on=True):
            return
    except PersistencedError as error:
        LOG.warning(
            "The kernel module keeps a GPU running, which nvidia-persistenced cannot open again",
            pci=pci,
            error=str(error),
        )
    if not nvml.is_persistent(gpu):
        nvml_clients.set_persistent(nvml, gpu, is_on=True)


def _is_refused(error: NvmlError) -> bool:
    """Whether the driver does not have the call, or this process not the right.

    Which errors drivers have for that is not known: all that say nothing of the GPU count.
    """
    return not error.is_driver_error and error.code not in _OF_GPU
