"""What claims ask of the node's GPUs, and publication of what claims have made of them.

One frozen snapshot, swapped whole by `survey`. `prove` asks the hardware itself, on the board's own
thread, so a board that hangs keeps only its own claims waiting (style.md §13).
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.nvml import NvmlError, Observe
from nvdra_api.runtime.process import background
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.process.worker import Worker, Workers
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_cdi.errors import CDIError, FileError
from nvdra_cdi.nvidia.options import Options

from nvdra_gpu_plugin.boards import Board
from nvdra_gpu_plugin.cdi_specs import SpecFiles
from nvdra_gpu_plugin.description import Describer
from nvdra_gpu_plugin.records import HeldGpu
from nvdra_gpu_plugin.sessions import Sessions
from nvdra_gpu_plugin.survey import Snapshot, Survey, View

LOG = logs.logger(__name__)


class Hardware:
    """The way to the node's GPUs; made by `running`.

    Attributes:
        may_retire: Whether it is known who stands on which CDI spec, so that old ones may go.
    """

    def __init__(self, survey: Survey, specs: SpecFiles, files: Worker) -> None:
        self.may_retire = False
        self._survey = survey
        self._specs = specs
        self._files = files

    @property
    def view(self) -> View:
        """All there is to know, as of the last look."""
        return self._survey.view

    @property
    def snapshot(self) -> Snapshot | None:
        """The GPUs as of the last look; None while they cannot be used."""
        return self._survey.view.snapshot

    @property
    def problem(self) -> str:
        """What is wrong with the node as a whole; empty when nothing is."""
        trouble = self._survey.view.trouble
        return "" if trouble is None else trouble.text

    @property
    def is_empty(self) -> bool:
        """Whether the driver works and there is no GPU for it."""
        return self._survey.view.is_empty

    @property
    def has_looked(self) -> bool:
        """Whether there was a first look, whatever it found."""
        return self._survey.has_looked.is_set()

    @property
    def is_complete(self) -> bool:
        """Whether the snapshot has every board of the node: a name that it lacks is none, then."""
        if self.snapshot is None:
            return False
        for_work = sum(board.is_for_work for board in self._survey.boards)
        return len(self.snapshot.inventory.gpus) >= for_work

    async def changed_since(self, serial: int) -> int:
        """Wait until `view` is another than a reader at `serial` has seen; the new serial."""
        return await self._survey.changed_since(serial)

    async def first_look(self, deadline: float) -> None:
        """Wait until the node was looked at once.

        Raises:
            RetryableError: `DeadlineExceeded`: NVML hangs.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._survey.has_looked.wait()
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "NVML has not described this node's GPUs since the plugin started",
                "if it lasts, look for Xid messages in the node's kernel log; nvidia-smi on the "
                "node hangs likewise",
            ) from error

    async def described(self, names: Collection[str], deadline: float) -> bool:
        """Wait for boards that have not said what they are, if one may be a device that is meant.

        Returns:
            Whether there was anything to wait for.

        Raises:
            PermanentError: `DeviceUnhealthy`, `DeviceNodeMissing`: it is there and of no use.
            RetryableError: `DeadlineExceeded`: it hangs.
        """
        has_waited = False
        while (board := self._awaited(names)) is not None:
            has_waited, fault = True, board.fault
            try:
                async with asyncio.timeout_at(deadline):
                    await self.changed_since(self._survey.serial)
            except TimeoutError as error:
                text = "a GPU of this node has not said what it is" if fault is None else fault.text
                raise RetryableError(Reason.DEADLINE_EXCEEDED, text) from error
        return has_waited

    async def prove(self, snapshot: Snapshot, device: HeldGpu, deadline: float) -> None:
        """Return only if the board answers and everything its CDI name stands for is there.

        Raises:
            PermanentError: `DeviceUnhealthy`, `DeviceNodeMissing`.
            RetryableError: `DeadlineExceeded`: the board hangs. `DriverMismatch`: the driver went.
        """
        try:
            if not self._survey.is_usable.is_set():
                async with asyncio.timeout_at(deadline):
                    await self._survey.is_usable.wait()
            board = self._board(snapshot, device)
            context = contextvars.copy_context()  # so that a slow NVML call finds its step
            await board.worker.run(context.run, _prove, snapshot, board, device, deadline=deadline)
        except TimeoutError as error:
            self._survey.stir()
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{device.device} ({device.uuid}) does not answer NVML",
                "other GPUs are not affected; if it lasts, look for Xid messages in the node's "
                "kernel log and reset the GPU",
                device=device.device,
            ) from error
        except DriverError:
            self._survey.stir()  # what a claim has met concerns the next one, too
            raise

    @property
    def has_own_spec(self) -> bool:
        """Whether the current spec still is where it was written; one `stat`."""
        return self.snapshot is not None and self.has_spec(self.snapshot.spec.generation.name)

    async def keep_spec(self, deadline: float) -> None:
        """Put the node's CDI spec back, should somebody have removed it.

        Raises:
            PermanentError: `DeviceNodeMissing`: it cannot be written.
            RetryableError: `DeadlineExceeded`: the disk hangs.
        """
        if self.snapshot is None:
            return
        try:
            await self._files.run(self._specs.write, self.snapshot.spec, deadline=deadline)
        except CDIError as error:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"the CDI spec of this node's GPUs was removed and cannot be written: {error}",
                "see that --cdi-root is a directory that can be written and has room",
            ) from error
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "the CDI spec of this node's GPUs was removed and is still being written",
                "see whether the disk of --cdi-root answers",
            ) from error

    def has_spec(self, generation: str) -> bool:
        """Whether the container runtime can resolve names of that generation."""
        return self._specs.has(generation)

    async def retire_specs(self, held: Collection[str]) -> None:
        """Remove the specs of generations that are not `held` and that no claim is just getting.

        One that cannot be removed harms nobody; the next time tries again.
        """
        if self.snapshot is None or not self.may_retire:
            return
        try:
            await self._files.run(self._specs.retire, {*held, *self._survey.needed})
        except FileError as error:
            LOG.warning("An old CDI spec stays", error=str(error))

    def _awaited(self, names: Collection[str]) -> Board | None:
        """A board that may be one of the devices that are not known.

        Raises:
            PermanentError: It is one, and nothing is to be waited for.
        """
        if self.snapshot is None:
            return None  # not a matter of a single board
        known = self.snapshot.inventory.by_name
        absent = {name for name in names if name not in known}
        faults = {fault.board: fault for fault in self.view.faults}
        for board in self._survey.boards:
            if not absent or not board.is_for_work:
                continue
            if board.name in absent and board.is_settled and board.name in faults:
                fault = faults[board.name]
                raise PermanentError(fault.reason, fault.text, device=fault.board)
            if board.name in absent or (board.name is None and not board.is_settled):
                return board
        return None

    def _board(self, snapshot: Snapshot, device: HeldGpu) -> Board:
        """Where the board is now: a record may be of an earlier boot, of another order of the bus.

        Raises:
            PermanentError: `DeviceUnhealthy`: it was there when it was looked at.
        """
        pci = snapshot.inventory.by_name[device.device].pci
        for board in self._survey.boards:
            if board.gpu is not None and board.gpu.pci == pci:
                return board
        raise PermanentError(
            Reason.DEVICE_UNHEALTHY,
            f"{device.device} ({device.uuid}) is not on the bus any more",
            "look for Xid messages in the node's kernel log",
            device=device.device,
        )


def _prove(snapshot: Snapshot, board: Board, device: HeldGpu) -> None:
    missing = snapshot.spec.missing(device.device)
    if missing:
        raise PermanentError(
            Reason.DEVICE_NODE_MISSING,
            f"{device.device} ({device.uuid}) needs {', '.join(missing)}, which is not on the "
            "node, or is another device now",
            "reload the driver (nvidia-modprobe -c0 -u makes device nodes)",
            device=device.device,
        )
    try:
        board.prove(device.uuid)
    except (NvmlError, ValueError) as error:
        if isinstance(error, NvmlError) and error.is_of_driver:
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                f"the driver of this node's GPUs has gone or changed: {error}",
                "the plugin looks for it and goes on once it is there",
                device=device.device,
            ) from error
        raise PermanentError(
            Reason.DEVICE_UNHEALTHY,
            f"{device.device} ({device.uuid}) does not work: {error}",
            "look for Xid messages in the node's kernel log; reset the GPU or drain the node",
            device=device.device,
        ) from error


@asynccontextmanager
async def running(
    host: Host,
    options: Callable[[], Options],
    specs: SpecFiles,
    observe: Observe,
    clock: Clock,
    threads: Workers,
    files: Worker,
) -> AsyncIterator[Hardware]:
    """Look at the node while the block runs; leaving it closes the NVML session."""
    sessions = Sessions(threads.started("nvml"), observe)
    describer = Describer(host, options, specs, clock)
    survey = Survey(host, describer, clock, sessions, files, threads)
    try:
        async with background.tasks(survey=survey.run()):
            yield Hardware(survey, specs, files)
    finally:
        await survey.close()
