# SPDX-License-Identifier: Apache-2.0
"""A GPU on vfio, for a virtual machine.

Nothing is written while a process has the GPU open: an unbind waits for that process without end
and cannot be taken back. So persistence mode ends first, the driver takes no new clients of the
GPU, and nvdra's own sessions of NVML are closed on the whole node meanwhile. What GPU and functions
of the board had before is in the record when the first of it is changed.
Source: docs/reference/gpu-prepare.md, "VFIO passthrough".
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_runtime.claims.changes import ChangeKind, Keep
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry.instrumentation import Telemetry

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import BindVfio, BoundFunction
from nvdra_gpu_plugin.hardware.gpu_drain import ClientAccess, GpuDrain
from nvdra_gpu_plugin.hardware.session_pause import SessionPause
from nvdra_gpu_plugin.passthrough import (
    boards,
    busy_gpus,
    holder_remedies,
    holders,
    pci_functions,
    vfio_modules,
)
from nvdra_gpu_plugin.passthrough.binder import Binder
from nvdra_gpu_plugin.passthrough.bindings import NVIDIA_DRIVER, FunctionBinding
from nvdra_gpu_plugin.passthrough.boards import Board
from nvdra_gpu_plugin.passthrough.busy_gpus import BusyGpus
from nvdra_gpu_plugin.passthrough.holders import Holder
from nvdra_gpu_plugin.passthrough.pci_functions import PciFunction
from nvdra_gpu_plugin.passthrough.vfio_modules import ModuleError

SWITCH_S: Final = 2.0
"""How long a switch to vfio may take while NVML is closed. Then it counts as stuck, and the other
GPUs are used again."""
RETURN_S: Final = 30.0
"""How long giving a GPU back may take. A GPU of an NVLink fabric needs more than ten seconds
(kubernetes-sigs/dra-driver-nvidia-gpu#1099)."""

_SESSIONS_S: Final = 10.0
"""How long sessions of NVML may take to be closed."""
_DAEMON: Final = holder_remedies.PERSISTENCED
"""The name of the process that closes a GPU when its persistence mode ends."""


class VfioHost(NamedTuple):
    """Where drivers of GPUs are switched.

    Attributes:
        host: The node's files.
        processes: The node's procfs, with all its processes.
        modules_root: The node's `/lib/modules`.
        modprobe: The command that loads a module.
        binder: Switches drivers.
        worker: The thread for it.
        clock: Says when a switch counts as stuck.
    """

    host: Host
    processes: Path
    modules_root: Path
    modprobe: Sequence[str]
    binder: Binder
    worker: Worker
    clock: Clock


class VfioBindingKind(ChangeKind[GpuClaimRecord, BindVfio]):
    """Binds GPUs to vfio, and gives them back."""

    def __init__(
        self,
        vfio: VfioHost,
        pause: SessionPause,
        drain: GpuDrain,
        busy: BusyGpus,
        telemetry: Telemetry,
    ) -> None:
        """Create it without any effect.

        Args:
            vfio: Where drivers are switched.
            pause: Closes NVML on the node.
            drain: Keeps new clients away from a GPU.
            busy: Learns which GPUs are refused because they are in use.
            telemetry: Traces the parts of a switch.
        """
        self._vfio = vfio
        self._busy = busy
        self._pause = pause
        self._drain = drain
        self._telemetry = telemetry

    async def inspect(self, claim: GpuClaimRecord, change: BindVfio) -> BindVfio:
        """What the GPU's functions have now: their drivers, and how the GPU treats clients.

        Raises:
            DriverError: `VfioNotPossible`, `VfioDeviceBusy`: the GPU cannot be taken.
        """
        with self._busy.noted(change.pci), self._telemetry.step("preflight"):
            change = await self._vfio.worker.run(_inspect, self._vfio, change)
            access = ClientAccess()
            if change.functions[0].former_driver == NVIDIA_DRIVER:
                access = await self._drain.inspect(change.pci, change.device)
            await self._vfio.worker.run(_check_leaving, self._vfio, change, access)
        update = {"former_persistence": access.persistence, "was_drained": access.is_drained}
        return change.model_copy(update=update)

    async def apply(
        self, claim: GpuClaimRecord, change: BindVfio, keep: Keep[BindVfio]
    ) -> BindVfio:
        """Bind them, unless they are on vfio already."""
        if await self.is_in_force(claim, change):
            return change
        await self._vfio.worker.run(_loaded_driver, self._vfio, change)
        with self._telemetry.step("drain"):
            await self._drain.begin(change.pci, change.device, _former_access(change))
        async with AsyncExitStack() as stack:
            until = asyncio.get_running_loop().time() + _SESSIONS_S
            with self._telemetry.step("close sessions"):
                await stack.enter_async_context(self._pause.paused(until))
            with self._busy.noted(change.pci), self._telemetry.step("bind"):
                await self._vfio.worker.run(_bind, self._vfio, change)
        return change

    async def is_in_force(self, claim: GpuClaimRecord, change: BindVfio) -> bool:
        """Whether all functions of the board are on vfio."""
        return await self._vfio.worker.run(_is_bound, self._vfio.host, change)

    async def revert(self, claim: GpuClaimRecord, change: BindVfio) -> None:
        """Give the functions their former drivers back. NVML is not needed for it.

        Raises:
            DriverError: `VfioDeviceBusy`: a virtual machine still has the GPU open.
        """
        if not change.functions or change.is_prebound:
            return
        with self._telemetry.step("unbind"):
            driver = await self._vfio.worker.run(_give_back, self._vfio, change)
        former = _former_access(change)
        if driver != NVIDIA_DRIVER:  # its module is not loaded: nothing is left to restore
            self._pause.reopen()
            return
        with self._telemetry.step("end drain"):
            if await self._drain.end(change.pci, change.device, former):
                await self._pause.renew()
            self._pause.reopen()
            await self._drain.keep_running(change.pci, change.device, former)


def _inspect(vfio: VfioHost, change: BindVfio) -> BindVfio:
    board = _board(vfio, change)
    vfio_driver = _loaded_driver(vfio, change)
    functions = tuple(
        BoundFunction(
            pci=function.pci,
            vfio_driver=vfio_driver,
            former_driver=function.driver,
            former_override=function.override,
        )
        for function in board.functions
    )
    return change.model_copy(update={"functions": functions})


def _check_leaving(vfio: VfioHost, change: BindVfio, access: ClientAccess) -> None:
    """Check that only programs have the GPU open that will let go of it.

    Raises:
        RetryableError: `VfioDeviceBusy`.
    """
    is_kept = access.persistence in ("daemon", "driver")  # by NVML, which may ask the daemon
    own = busy_gpus.OWN_PROGRAMS
    leaving = (own, _DAEMON) if is_kept else (own,)
    _check_free(vfio, _board(vfio, change), leaving)


def _former_access(change: BindVfio) -> ClientAccess:
    return ClientAccess(change.former_persistence, change.was_drained)


def _load_module(vfio: VfioHost, change: BindVfio) -> None:
    try:
        vfio_modules.load(change.module, vfio.modprobe)
    except ModuleError as error:
        raise RetryableError(
            Reason.VFIO_BIND_FAILED,
            f"{change.device} cannot be bound to vfio: {error}",
            "see the kernel's log on the node",
            device=change.device,
        ) from error


def _bind(vfio: VfioHost, change: BindVfio) -> None:
    # Again: a process may have come since, and from now on NVML is closed here.
    _check_free(vfio, _board(vfio, change))
    vfio.binder.bind(_functions(change), vfio.clock.monotonic() + SWITCH_S)


def _give_back(vfio: VfioHost, change: BindVfio) -> str | None:
    """Give the drivers back. Returns that of the GPU."""
    bus = pci_functions.read_some(vfio.host, [change.pci])
    function = bus.functions.get(change.pci)
    if function is not None and function.is_on_vfio:
        # Also a process that has opened only the group yet: it is about to open the GPU.
        found = _holders(vfio, function)
        if found:
            raise holders.busy(change.pci, found)
    drivers = vfio.binder.give_back(_functions(change), vfio.clock.monotonic() + RETURN_S)
    return drivers.get(change.pci)


def _is_bound(host: Host, change: BindVfio) -> bool:
    bus = pci_functions.read_some(host, [function.pci for function in change.functions])
    found = (bus.functions.get(function.pci) for function in change.functions)
    return bool(change.functions) and all(
        now is not None and now.driver == function.vfio_driver
        for now, function in zip(found, change.functions, strict=True)
    )


def _board(vfio: VfioHost, change: BindVfio) -> Board:
    """The board as it is now.

    Raises:
        PermanentError: `VfioNotPossible`.
        RetryableError: `VfioDeviceBusy`: it drives the node's screen.
    """
    bus = pci_functions.read(vfio.host)
    claimed = (change.pci,) if change.functions else ()
    found = boards.find(bus, {change.pci: change.module}, claimed=claimed)
    board = next((board for board in found if board.gpu.pci == change.pci), None)
    if board is None:
        raise PermanentError(
            Reason.VFIO_NOT_POSSIBLE,
            f"{change.device} ({change.pci}) is not on the PCI bus of this node",
            "check that the GPU is plugged in and that the kernel's log names it",
            device=change.device,
        )
    if board.refusal is not None:
        raise PermanentError(
            Reason.VFIO_NOT_POSSIBLE,
            board.refusal.message,
            board.refusal.remedy,
            device=change.device,
        )
    if board.drives_console:
        raise RetryableError(
            Reason.VFIO_DEVICE_BUSY,
            f"{change.device} ({change.pci}) drives the screen of the node",
            "boot the node with its console on another display or on a serial line",
            device=change.device,
            command=busy_gpus.CONSOLE,
        )
    return board


def _loaded_driver(vfio: VfioHost, change: BindVfio) -> str:
    """The name of the module's driver. The module is loaded unless the driver is registered."""
    found = _registered_driver(vfio, change)
    if found is None:
        _load_module(vfio, change)
        found = _registered_driver(vfio, change)
    if found is None:
        raise PermanentError(
            Reason.VFIO_NOT_POSSIBLE,
            f"the module {change.module} has registered no PCI driver",
            "see the kernel's log on the node",
            device=change.device,
        )
    return found


def _registered_driver(vfio: VfioHost, change: BindVfio) -> str | None:
    drivers = pci_functions.read_some(vfio.host, [change.pci]).drivers
    return vfio_modules.driver_of(change.module, drivers)


def _check_free(vfio: VfioHost, board: Board, leaving: tuple[str, ...] = ()) -> None:
    """Check that no process has the GPU open, apart from programs whose names begin so.

    Raises:
        RetryableError: `VfioDeviceBusy`, with the processes.
    """
    held = [
        holder
        for holder in _holders(vfio, board.gpu)
        if holder.keeps_driver and not holder.command.startswith(leaving)
    ]
    if held:
        raise holders.busy(board.gpu.pci, held)


def _holders(vfio: VfioHost, gpu: PciFunction) -> tuple[Holder, ...]:
    """The processes that have a GPU open."""
    return holders.of_gpu(vfio.host, vfio.processes, gpu)


def _functions(change: BindVfio) -> tuple[FunctionBinding, ...]:
    return tuple(FunctionBinding(**function.model_dump()) for function in change.functions)
