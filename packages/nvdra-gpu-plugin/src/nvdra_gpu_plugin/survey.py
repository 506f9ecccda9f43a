"""Looks at the node again and again, and keeps what there is to know of its GPUs: a `View`.

At the driver's files, at the boards' answers, at the device nodes: a driver that comes, goes or
changes, a board that hangs, is lost or comes back, and a device node that vanishes are known within
seconds, and nobody has to restart anything. What claims need of it is `hardware`'s.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.process import waiting
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.process.worker import Worker, Workers
from nvdra_api.types.errors import Reason

from nvdra_gpu_plugin import boards, installation
from nvdra_gpu_plugin.boards import Board
from nvdra_gpu_plugin.cdi_specs import NodeSpec
from nvdra_gpu_plugin.description import Describer, Description
from nvdra_gpu_plugin.installation import Installation
from nvdra_gpu_plugin.inventory import Fault, Gpu, Inventory
from nvdra_gpu_plugin.renewals import Renewals
from nvdra_gpu_plugin.sessions import NoDriver, Session, Sessions

_LOOK_AGAIN_S: Final = 5.0
"""Between two looks at files: some 200 `lstat`, a millisecond. Boards have their own rhythm."""

_GRACE_S: Final = 2.0
"""How long a new session's boards may take to describe themselves before the others are published
without them; they take milliseconds."""

_QUIET_S: Final = 1.0
"""How long calls under way may take before the session is not closed below them."""

_REPLACED_S: Final = 600.0
"""How long the last generation stays for a claim that is just being prepared from it; the kubelet
gives up after 45 s."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is on the node, and what containers are given of it."""

    inventory: Inventory
    spec: NodeSpec


@dataclass(frozen=True, slots=True)
class View:
    """What is to be told of the node.

    Attributes:
        snapshot: Its GPUs; None while they cannot be used.
        trouble: Why not, or what could not be done for those there are.
        faults: Boards that are not offered.
    """

    snapshot: Snapshot | None = None
    trouble: Fault | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the driver works and there is no GPU for it."""
        if self.snapshot is None or self.faults:
            return False
        return not self.snapshot.inventory.gpus


class Survey:
    """Keeps a view of the node true while `run` runs.

    Attributes:
        view: As of the last look.
        serial: Grows with every change of the view.
        boards: What NVML shows, described or not.
        has_looked: Set once the first look is over, whatever it found.
        is_usable: Set, unless the session with NVML is just being replaced.
    """

    def __init__(
        self,
        host: Host,
        describer: Describer,
        clock: Clock,
        sessions: Sessions,
        files: Worker,
        threads: Workers,
    ) -> None:
        self.view = View(trouble=Fault("", "they have not been looked at yet"))
        self.serial = 0
        self.boards: tuple[Board, ...] = ()
        self.has_looked = asyncio.Event()
        self.is_usable = asyncio.Event()
        self._host = host
        self._describer = describer
        self._clock = clock
        self._sessions = sessions
        self._files = files
        self._threads = threads
        self._workers: dict[int, Worker] = {}
        self._attending: list[asyncio.Task[None]] = []
        self._renewals = Renewals()
        self._is_stale = True
        self._described: Description | None = None
        self._replaced: dict[str, float] = {}
        self._stirred = asyncio.Event()
        self._moved = asyncio.Condition()

    @property
    def needed(self) -> Collection[str]:
        """Generations that a claim may just be prepared from, though no record names them yet."""
        now = self._clock.monotonic()
        self._replaced = {g: at for g, at in self._replaced.items() if now - at < _REPLACED_S}
        current = () if self._described is None else (self._described.spec.generation.name,)
        return {*self._replaced, *current}

    def stir(self) -> None:
        """Look at once: somebody has learnt that something is wrong."""
        for board in self.boards:
            board.poke()
        self._stirred.set()

    async def changed_since(self, serial: int) -> int:
        """Wait until `view` is another than a reader at `serial` has seen; the new serial."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.serial > serial)
            return self.serial

    async def run(self) -> None:
        """Look for ever: when something stirs, and every few seconds."""
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    view = await self._look(group)
                except NoDriver as error:
                    view = View(trouble=error.fault)
                self.is_usable.set()
                await self._show(view)
                await waiting.within(self._stirred, _LOOK_AGAIN_S)
                self._stirred.clear()

    async def close(self) -> None:
        """End the session with NVML, unless NVML hangs."""
        await self._part()

    async def _look(self, group: asyncio.TaskGroup) -> View:
        """See how things are.

        Raises:
            NoDriver: There is nothing to look at, or it cannot be described.
        """
        try:
            found = await self._files.run(installation.read, self._host)
        except FileNotFoundError as error:
            await self._part()
            raise NoDriver(Reason.DRIVER_MISMATCH, str(error)) from error
        session, now = self._sessions.current, self._clock.monotonic()
        if self._renewals.is_due(session, self.boards, found, now):
            await self._renew(found, group)
        await self._settle()
        self._described, self._is_stale = await self._describe(found), False
        return self._seen(self._described)

    async def _renew(self, found: Installation, group: asyncio.TaskGroup) -> None:
        """Open NVML anew, and begin to ask its boards.

        Raises:
            NoDriver: It does not work.
        """
        if not self._sessions.is_opening:
            await self._part()
        session = await self._sessions.open(found)
        former = {gpu.pci: gpu for gpu in self._known(session)}
        self.boards = boards.of(session, self._host, self._clock, former, self._worker)
        self._renewals.opened_at, self._is_stale = self._clock.monotonic(), True
        self._attending = [
            group.create_task(board.attend(self._stirred.set), name=f"board {index}")
            for index, board in enumerate(self.boards)
        ]

    async def _part(self) -> None:
        """End the session, so that the driver can be unloaded; claims wait until there is one."""
        self.is_usable.clear()
        for task in self._attending:
            task.cancel()
        self._attending = []
        if await self._is_quiet():
            await self._sessions.close()
        else:
            self._sessions.let_go()

    async def _is_quiet(self) -> bool:
        """Whether nobody is in a call of the session; those who are may finish."""
        deadline = asyncio.get_running_loop().time() + _QUIET_S
        try:
            for board in self.boards:
                await board.worker.run(_nothing, deadline=deadline)
        except TimeoutError:
            return False
        return True

    def _known(self, session: Session) -> Sequence[Gpu]:
        """Boards as they were, if it is the same driver that describes them."""
        gpus = [board.gpu for board in self.boards if board.gpu is not None]
        return [gpu for gpu in gpus if gpu.driver_version == session.driver.version]

    def _worker(self, index: int) -> Worker:
        """A thread that hangs in a session of the past is left to it."""
        worker = self._workers.get(index)
        if worker is None or worker.is_busy:
            worker = self._workers[index] = self._threads.started(f"gpu-{index}")
        return worker

    async def _settle(self) -> None:
        """Give boards that have just been asked for the first time a moment to answer."""
        until = self._renewals.opened_at + _GRACE_S
        while not all(board.is_settled for board in self.boards):
            left = until - self._clock.monotonic()
            if left <= 0 or not await waiting.within(self._stirred, left):
                return
            self._stirred.clear()

    async def _describe(self, found: Installation) -> Description:
        """Have a spec of what is there, on the disk.

        Raises:
            NoDriver: The driver's files are not there, or the spec cannot be written.
        """
        gpus = sorted((b.gpu for b in self.boards if b.gpu is not None), key=lambda gpu: gpu.pci)
        before, is_stale = self._described, self._is_stale
        return await self._files.run(
            self._describer.describe, tuple(gpus), found.loadable, before, is_stale
        )

    def _seen(self, described: Description) -> View:
        """What follows from what the boards and the files say."""
        snapshot = Snapshot(
            Inventory(tuple(gpu for gpu in described.gpus if gpu.name in described.spec.own)),
            described.spec,
        )
        faults = [fault for board in self.boards if (fault := board.fault) is not None]
        faults += described.left_out
        faults += [
            _node_missing(gpu, described.missing[gpu.name])
            for gpu in snapshot.inventory.gpus
            if gpu.name in described.missing
        ]
        return View(snapshot, described.trouble, tuple(faults))

    async def _show(self, view: View) -> None:
        """Make it known, unless it is what was known; equal snapshots stay the same object."""
        if view.snapshot == self.view.snapshot:
            view = replace(view, snapshot=self.view.snapshot)
        elif self.view.snapshot is not None:
            generation = self.view.snapshot.spec.generation.name
            self._replaced[generation] = self._clock.monotonic()
        if not self._sessions.is_opening:
            self.has_looked.set()
        if view != self.view:
            async with self._moved:
                self.view = view
                self.serial += 1
                self._moved.notify_all()


def _nothing() -> None:
    pass


def _node_missing(gpu: Gpu, gone: Sequence[str]) -> Fault:
    return Fault(
        gpu.name,
        f"{gpu.name} ({gpu.uuid}) needs {', '.join(gone)}, which is not on the node, or is another "
        "device now; reload the driver (nvidia-modprobe -c0 -u makes device nodes); it is offered "
        "again once it is there",
        Reason.DEVICE_NODE_MISSING,
    )
