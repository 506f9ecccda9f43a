"""The node's GPUs as they are now: one frozen snapshot, swapped whole, and threads to ask them.

`Hardware.look` builds a snapshot; `Hardware.prove` asks the hardware itself, on the board's own
thread, so a board that hangs keeps only its own claims waiting (style.md §13).
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.nvml import Handle, Nvml, NvmlError, Observe
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import PermanentError, Reason, RetryableError
from nvdra_api.types.ids import GpuUUID, PciAddress
from nvdra_cdi.errors import CDIError, FileError
from nvdra_cdi.nvidia.options import Options

from nvdra_gpu_plugin import cdi_specs, discovery
from nvdra_gpu_plugin.cdi_specs import NodeSpec, SpecFiles
from nvdra_gpu_plugin.inventory import Inventory
from nvdra_gpu_plugin.records import HeldDevice

LOG = logs.logger(__name__)

_CLOSE_S = 1.0
"""How long the end waits for NVML to close its session; the kernel does it when we are gone."""


class NoDriver(Exception):
    """The node's GPUs cannot be looked at; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is on the node, how to ask it, and what containers are given of it."""

    inventory: Inventory
    handles: Mapping[GpuUUID, Handle]
    spec: NodeSpec


class Hardware:
    """The way to the node's GPUs; made by `running`.

    Attributes:
        snapshot: As of the last successful look; None before the first.
        problem: Why the last look failed; empty when it did not.
    """

    def __init__(
        self,
        host: Host,
        options: Options,
        files: SpecFiles,
        observe: Observe,
        worker: Worker,
        threads: AsyncExitStack,
    ) -> None:
        self.snapshot: Snapshot | None = None
        self.problem = "they have not been looked at yet"
        self._host = host
        self._options = options
        self._files = files
        self._observe = observe
        self._worker = worker
        self._threads = threads
        self._boards: dict[PciAddress, Worker] = {}
        self._nvml: Nvml | None = None
        self._looked = asyncio.Event()

    @property
    def has_looked(self) -> bool:
        """Whether there was a first look, whatever it found."""
        return self._looked.is_set()

    async def first_look(self, deadline: float) -> None:
        """Wait until the node was looked at once.

        Raises:
            RetryableError: `DeadlineExceeded`: NVML hangs.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._looked.wait()
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "NVML has not described this node's GPUs since the plugin started",
                "if it lasts, look for Xid messages in the node's kernel log; nvidia-smi on the "
                "node hangs likewise",
            ) from error

    async def look(self) -> Snapshot:
        """Look at the hardware, write its CDI spec, and swap the snapshot.

        Raises:
            NoDriver: There is nothing to look at, or it cannot be described.
        """
        try:
            snapshot = await self._worker.run(self._see)
        except NoDriver as error:
            self.problem = str(error)
            self._looked.set()
            raise
        for gpu in snapshot.inventory.gpus:
            if gpu.pci not in self._boards:
                self._boards[gpu.pci] = await self._threads.enter_async_context(Worker(gpu.name))
        self.snapshot, self.problem = snapshot, ""
        self._looked.set()
        return snapshot

    async def prove(self, snapshot: Snapshot, device: HeldDevice, deadline: float) -> None:
        """Return only if the board answers and everything its CDI name stands for is there.

        Raises:
            PermanentError: `DeviceUnhealthy`, `DeviceNodeMissing`.
            RetryableError: `DeadlineExceeded`: the board hangs.
        """
        context = contextvars.copy_context()  # so that a slow NVML call finds its step
        # Where the board is now: a record may be of an earlier boot, before the bus was renumbered.
        board = self._boards[snapshot.inventory.by_name[device.device].pci]
        try:
            await board.run(context.run, self._prove, snapshot, device, deadline=deadline)
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{device.device} ({device.uuid}) does not answer NVML",
                "other GPUs are not affected; if it lasts, look for Xid messages in the node's "
                "kernel log and reset the GPU",
                device=device.device,
            ) from error

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
            await self._worker.run(self._files.write, self.snapshot.spec, deadline=deadline)
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
        return self._files.has(generation)

    async def retire_specs(self, held: Collection[str]) -> None:
        """Remove the specs of generations that are neither current nor `held` by a claim.

        One that cannot be removed harms nobody; the next start tries again.
        """
        if self.snapshot is None:
            return
        kept = {*held, self.snapshot.spec.generation.name}
        try:
            await self._worker.run(self._files.retire, kept)
        except FileError as error:
            LOG.warning("An old CDI spec stays", error=str(error))

    async def close(self) -> None:
        """End the NVML session, unless NVML hangs."""
        if self._nvml is None:
            return
        deadline = asyncio.get_running_loop().time() + _CLOSE_S
        try:
            await self._worker.run(self._nvml.close, deadline=deadline)
        except (NvmlError, TimeoutError) as error:
            LOG.warning("NVML did not close its session", error=str(error) or "no answer")

    def _see(self) -> Snapshot:
        try:
            if self._nvml is None:
                library = self._host.find_library("libnvidia-ml.so.1")
                self._nvml = Nvml.load(library, self._observe)
            found = discovery.discover(self._nvml, self._host)
            options = self._options.model_copy(
                update={"driver_version": self._nvml.driver_version()}
            )
            spec, faults = cdi_specs.describe(found.inventory.gpus, options)
            self._files.write(spec)
        except (FileNotFoundError, NvmlError, CDIError) as error:
            raise NoDriver(str(error)) from error
        return Snapshot(found.inventory.without(faults), found.handles, spec)

    def _prove(self, snapshot: Snapshot, device: HeldDevice) -> None:
        missing = snapshot.spec.missing(device.device)
        if missing:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"{device.device} ({device.uuid}) needs {', '.join(missing)}, which is not on the "
                "node, or is another device now",
                "reload the driver (nvidia-modprobe -c0 -u makes device nodes) and restart the "
                "plugin's pod on this node",
                device=device.device,
            )
        if self._nvml is None:
            raise RuntimeError("a snapshot without NVML")
        try:
            self._nvml.prove_alive(snapshot.handles[device.uuid])
        except NvmlError as error:
            raise PermanentError(
                Reason.DEVICE_UNHEALTHY,
                f"{device.device} ({device.uuid}) does not work: {error}",
                "look for Xid messages in the node's kernel log; reset the GPU or drain the node",
                device=device.device,
            ) from error


@asynccontextmanager
async def running(
    host: Host, options: Options, files: SpecFiles, observe: Observe
) -> AsyncIterator[Hardware]:
    """Threads for the node and for each of its boards; leaving closes the NVML session."""
    async with Worker("nvml") as worker, AsyncExitStack() as threads:
        hardware = Hardware(host, options, files, observe, worker, threads)
        yield hardware
        await hardware.close()
