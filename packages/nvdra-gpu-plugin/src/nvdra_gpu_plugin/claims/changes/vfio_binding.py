# SPDX-License-Identifier: Apache-2.0
"""A GPU on vfio, for a virtual machine.

Nothing is written while a process has the GPU open: an unbind waits for that process without end
and cannot be taken back. So persistence mode ends first, the driver takes no new clients of the
GPU, and nvdra's own sessions of NVML are closed on the whole node meanwhile. What GPU and functions
of the board had before is in the record when the first of it is changed.
Source: docs/reference/gpu-prepare.md, "VFIO passthrough".
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import PciAddress
from nvdra_runtime.claims.changes import ChangeKind, Keep
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import WorkerGroup
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.active_span import CURRENT_SPAN, ActiveSpan
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.spans import AttributeValue

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
from nvdra_gpu_plugin.passthrough.binder import Binder, LastingSwitchError, TraceStep
from nvdra_gpu_plugin.passthrough.bindings import NVIDIA_DRIVER, FunctionBinding, Step
from nvdra_gpu_plugin.passthrough.boards import Board
from nvdra_gpu_plugin.passthrough.busy_gpus import BusyGpus
from nvdra_gpu_plugin.passthrough.holders import Holder
from nvdra_gpu_plugin.passthrough.pci_functions import PciFunction
from nvdra_gpu_plugin.passthrough.vfio_modules import ModuleError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SWITCH_S: Final = 2.0
"""How long a switch to vfio may take for each function, while NVML is closed. Then it counts as
stuck, and the other GPUs are used again."""
_LASTING_S: Final = 8.0
"""How much longer a switch that is stuck is waited for, until its claim is answered."""
RETURN_S: Final = 30.0
"""How long giving a GPU back may take. A GPU of an NVLink fabric needs more than ten seconds
(kubernetes-sigs/dra-driver-nvidia-gpu#1099)."""

_SESSIONS_S: Final = 10.0
"""How long sessions of NVML may take to be closed."""
_DAEMON: Final = holder_remedies.PERSISTENCED
"""The name of the process that closes a GPU when its persistence mode ends."""
_THREAD: Final = "vfio"
_STEP_NAMES: Final = {Step.UNBIND: "unbind", Step.BIND: "bind"}


class VfioHost(NamedTuple):
    """Where drivers of GPUs are switched.

    Attributes:
        host: The node's files.
        processes: The node's procfs, with all its processes.
        modules_root: The node's `/lib/modules`.
        modprobe: The command that loads a module.
        binder: Switches drivers.
        threads: A write to a driver may take long: those of several GPUs do not wait.
        clock: Says when a switch counts as stuck.
    """

    host: Host
    processes: Path
    modules_root: Path
    modprobe: Sequence[str]
    binder: Binder
    threads: WorkerGroup
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
        with self._busy.noted(change.pci):
            with self._telemetry.step("preflight"):
                change = await self._run(_inspect, change)
                access = ClientAccess()
                if change.functions[0].former_driver == NVIDIA_DRIVER:
                    access = await self._drain.inspect(change.pci, change.device)
            with self._telemetry.step("wait free") as span:
                await self._run(_check_free, change, span, _leaving(access))
        update = {"former_persistence": access.persistence, "was_drained": access.is_drained}
        return change.model_copy(update=update)

    async def apply(
        self, claim: GpuClaimRecord, change: BindVfio, keep: Keep[BindVfio]
    ) -> BindVfio:
        """Bind them, unless they are on vfio already."""
        if await self.is_in_force(claim, change):
            return change
        await self._run(_check_ready, change)
        with self._telemetry.step("drain"):
            await self._drain.begin(change.pci, change.device, _former_access(change))
        with self._busy.noted(change.pci):
            try:
                async with self._sessions_closed():
                    with self._telemetry.step("wait free") as span:
                        # Again: a process may have come since, and from now on NVML is closed here.
                        await self._run(_check_free, change, span)
                    limit_s = SWITCH_S * len(change.functions)
                    await self._run(_bind, change, limit_s, self._traced())
            except LastingSwitchError:
                with self._telemetry.step("wait driver"):
                    await self._run(_bind, change, _LASTING_S, self._traced())
        return change

    async def is_in_force(self, claim: GpuClaimRecord, change: BindVfio) -> bool:
        """Whether all functions of the board are on vfio."""
        return await self._run(_is_bound, change)

    async def revert(self, claim: GpuClaimRecord, change: BindVfio) -> None:
        """Give the functions their former drivers back. NVML is not needed for it.

        Raises:
            DriverError: `VfioDeviceBusy`: a virtual machine still has the GPU open.
        """
        if not change.functions or change.is_prebound:
            return
        with self._telemetry.step("wait free") as span:
            await self._run(_check_left, change, span)
        driver = await self._run(_give_back, change, self._traced())
        former = _former_access(change)
        if driver != NVIDIA_DRIVER:  # its module is not loaded: nothing is left to restore
            self._pause.reopen()
            return
        with self._telemetry.step("end drain"):
            if await self._drain.end(change.pci, change.device, former):
                await self._pause.renew()
            self._pause.reopen()
            await self._drain.keep_running(change.pci, change.device, former)

    async def _run(
        self, function: Callable[[VfioHost, BindVfio, *Ts], T], change: BindVfio, *arguments: *Ts
    ) -> T:
        """Call a function that blocks, on a thread for it. Its errors name the device."""
        worker = self._vfio.threads.idle_worker(_THREAD)
        with _naming(change):
            return await worker.run(function, self._vfio, change, *arguments)

    @asynccontextmanager
    async def _sessions_closed(self) -> AsyncIterator[None]:
        """Have NVML closed on the node for the block."""
        until = asyncio.get_running_loop().time() + _SESSIONS_S
        async with AsyncExitStack() as stack:
            with self._telemetry.step("close sessions"):
                await stack.enter_async_context(self._pause.paused(until))
            try:
                yield
            finally:
                with self._telemetry.step("reopen sessions"):
                    await stack.aclose()

    def _traced(self) -> TraceStep:
        """Traces writes on another thread, below the current span."""
        parent = CURRENT_SPAN.get()

        def trace(step: Step, pci: PciAddress) -> AbstractContextManager[object]:
            return self._telemetry.step(_STEP_NAMES[step], {keys.PCI: pci}, parent=parent)

        return trace


@contextmanager
def _naming(change: BindVfio) -> Iterator[None]:
    """Have errors begin with the device, as users know nothing of addresses."""
    try:
        yield
    except DriverError as error:
        raise type(error)(
            error.reason,
            f"{change.device}: {error.message}",
            error.remedy,
            since=error.since,
            operator_message=f"{change.device}: {error.operator_message}",
            **{**error.facts, "device": change.device},
        ) from error


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


def _leaving(access: ClientAccess) -> tuple[str, ...]:
    """How the names of the programs begin that will let go of the GPU."""
    is_kept = access.persistence in ("daemon", "driver")  # by NVML, which may ask the daemon
    own = busy_gpus.OWN_PROGRAMS
    return (own, _DAEMON) if is_kept else (own,)


def _former_access(change: BindVfio) -> ClientAccess:
    return ClientAccess(change.former_persistence, change.was_drained)


def _load_module(vfio: VfioHost, change: BindVfio) -> None:
    try:
        vfio_modules.load(change.module, vfio.modprobe)
    except ModuleError as error:
        raise RetryableError(
            Reason.VFIO_BIND_FAILED,
            f"it cannot be bound to vfio: {error}",
            "see the kernel's log on the node",
        ) from error


def _check_ready(vfio: VfioHost, change: BindVfio) -> None:
    """Check, before NVML is closed for it, that the GPU can be bound now."""
    _loaded_driver(vfio, change)
    vfio.binder.check_at_rest(_functions(change))


def _bind(vfio: VfioHost, change: BindVfio, limit_s: float, traced: TraceStep) -> None:
    vfio.binder.bind(_functions(change), vfio.clock.monotonic() + limit_s, traced)


def _check_left(vfio: VfioHost, change: BindVfio, span: ActiveSpan) -> None:
    """Check that no virtual machine has the GPU any more, and that no unbind of it lasts.

    Raises:
        RetryableError: `VfioDeviceBusy`.
    """
    vfio.binder.check_at_rest(_functions(change))
    bus = pci_functions.read_some(vfio.host, [change.pci])
    function = bus.functions.get(change.pci)
    if function is not None and function.is_on_vfio:
        # Also a process that has opened only the group yet: it is about to open the GPU.
        _refuse_held(change, _holders(vfio, function), span)


def _give_back(vfio: VfioHost, change: BindVfio, traced: TraceStep) -> str | None:
    """Give the drivers back. Returns that of the GPU."""
    deadline = vfio.clock.monotonic() + RETURN_S
    return vfio.binder.give_back(_functions(change), deadline, traced).get(change.pci)


def _is_bound(vfio: VfioHost, change: BindVfio) -> bool:
    bus = pci_functions.read_some(vfio.host, [function.pci for function in change.functions])
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
    found = boards.find(bus, {change.pci: change.module or None}, claimed=claimed)
    board = next((board for board in found if board.gpu.pci == change.pci), None)
    if board is None:
        raise PermanentError(
            Reason.VFIO_NOT_POSSIBLE,
            f"GPU {change.pci} is not on the PCI bus of this node",
            "check that the GPU is plugged in and that the kernel's log names it",
        )
    if board.refusal is not None:
        refusal = board.refusal
        raise PermanentError(Reason.VFIO_NOT_POSSIBLE, refusal.message, refusal.remedy)
    if board.drives_console:
        raise RetryableError(
            Reason.VFIO_DEVICE_BUSY,
            f"GPU {change.pci} drives the screen of the node",
            "boot the node with its console on another display or on a serial line",
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
        )
    return found


def _registered_driver(vfio: VfioHost, change: BindVfio) -> str | None:
    drivers = pci_functions.read_some(vfio.host, [change.pci]).drivers
    return vfio_modules.driver_of(change.module, drivers)


def _check_free(
    vfio: VfioHost, change: BindVfio, span: ActiveSpan, leaving: tuple[str, ...] = ()
) -> None:
    """Check that no process has the GPU open, apart from programs whose names begin so.

    Of a GPU that is on vfio already, everybody counts: its group can be open once.

    Raises:
        DriverError: As `_board`; `VfioDeviceBusy`, with the processes.
    """
    gpu = _board(vfio, change).gpu
    held = [
        holder
        for holder in _holders(vfio, gpu)
        if gpu.is_on_vfio or (holder.keeps_driver and not holder.command.startswith(leaving))
    ]
    _refuse_held(change, held, span)


def _refuse_held(change: BindVfio, held: Sequence[Holder], span: ActiveSpan) -> None:
    for holder in held:
        facts: dict[str, AttributeValue] = {
            keys.PID: holder.pid,
            keys.COMMAND: holder.command,
            keys.USES: holder.uses,
        }
        if holder.pod:
            facts[keys.K8S_POD_UID] = holder.pod
        span.add_event("holder", facts)
    if held:
        raise holders.busy(change.pci, held)


def _holders(vfio: VfioHost, gpu: PciFunction) -> tuple[Holder, ...]:
    """The processes that have a GPU open."""
    return holders.of_gpu(vfio.host, vfio.processes, gpu)


def _functions(change: BindVfio) -> tuple[FunctionBinding, ...]:
    return tuple(FunctionBinding(**function.model_dump()) for function in change.functions)
