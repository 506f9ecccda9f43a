"""The boards that NVML shows, each asked on a thread of its own.

A board is asked again and again, what it is and then whether it still answers, so that one that
hangs, falls off the bus or comes back is known before a claim meets it. What follows from that for
the node is `survey`'s to say.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.nvml import Handle, NvmlError
from nvdra_api.runtime.process import waiting
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.types.ids import DeviceName, GpuUUID, PciAddress

from nvdra_gpu_plugin import discovery, installation, naming
from nvdra_gpu_plugin.installation import Installation
from nvdra_gpu_plugin.inventory import Fault, Gpu
from nvdra_gpu_plugin.sessions import Session

_ASK_AGAIN_S: Final = 10.0
"""Between two questions to a board. One costs some 20 µs, and a claim asks again for itself."""

SILENT_S: Final = 10.0
"""A board that leaves a question unanswered for so long is not offered until it answers. NVML
answers within milliseconds, under load within a few seconds (spec/gpu-devices.md §5.1)."""

_REMEDY: Final = (
    "look for Xid messages in the node's kernel log; reset the GPU or drain the node; it is "
    "offered again once it answers"
)


class _Answer(NamedTuple):
    """What a board said: what it is, or what is wrong; neither when it is fine, or not for work."""

    found: tuple[Gpu, Handle] | None = None
    error: NvmlError | ValueError | None = None


class Board:
    """One place on the bus.

    Attributes:
        worker: Its thread.
        gpu: What the board is, once it has said so; of the session before, until it has.
        handle: By which this session asks it; None until it has been described.
        is_settled: It has answered the first question of this session, one way or another.
        is_for_work: It is no board that only drives a screen, as far as it has said.
    """

    def __init__(
        self,
        session: Session,
        index: int,
        host: Host,
        clock: Clock,
        worker: Worker,
        former: Gpu | None,
    ) -> None:
        self.worker = worker
        self.gpu = former
        self.handle: Handle | None = None
        self.is_settled = False
        self._session = session
        self._index = index
        self._host = host
        self._clock = clock
        self.is_for_work = True
        self._minor: int | None = None
        self._error = ""
        self._since = clock.now()
        self._asked_at: float | None = None
        self._asked_on = clock.now()
        self._poked = asyncio.Event()

    @property
    def name(self) -> DeviceName | None:
        """Its device name, as soon as anybody has told it."""
        if self.gpu is not None:
            return self.gpu.name
        return None if self._minor is None else naming.gpu(self._minor)

    @property
    def fault(self) -> Fault | None:
        """Why it cannot be used now."""
        called = self.name or f"the GPU at index {self._index}"
        uuid = "" if self.gpu is None else f" ({self.gpu.uuid})"
        if self._asked_at is not None and (not self.is_settled or self.is_late):
            text = f"{called}{uuid} has not answered NVML since {_time(self._asked_on)}; {_REMEDY}"
            return Fault(called, text)
        if self._error:
            since = _time(self._since)
            text = f"{called}{uuid} does not work since {since}: {self._error}; {_REMEDY}"
            return Fault(called, text)
        return None

    def poke(self) -> None:
        """Have it asked at once: somebody has learnt that something is wrong."""
        self._poked.set()

    def prove(self, uuid: GpuUUID) -> None:
        """Return only if this very board answers; on its own thread.

        Raises:
            NvmlError: It does not.
            ValueError: Another board is in its place.
        """
        nvml, handle = self._session.nvml, self.handle
        if handle is None:  # the session is so new that its first answer is still under way
            found = discovery.board(nvml, self._index, self._host, self._session.driver)
            handle = None if found is None else found[1]
        if handle is None or handle.uuid != uuid:
            raise ValueError("another board is in its place")
        nvml.prove_alive(handle)

    async def attend(self, tell: Callable[[], None]) -> None:
        """Ask it again and again; returns only where there is nothing to ask for.

        Args:
            tell: Called when the answer is another than before.
        """
        self._ask_now()
        place = _place(self._session.installation, self._session.count, self._index)
        if place is not None and self.gpu is None:
            self._minor = await self.worker.run(installation.minor, self._host, place)
        while self.is_for_work:
            before = (self.handle, self._error, self.is_settled)
            self._ask_now()
            answer = await self.worker.run(self._ask)
            was_late, self._asked_at = self.is_late, None
            self._learn(answer)
            if was_late or before != (self.handle, self._error, self.is_settled):
                tell()
            await waiting.within(self._poked, _ASK_AGAIN_S)
            self._poked.clear()

    @property
    def is_late(self) -> bool:
        """Whether it owes an answer for longer than any board that works."""
        return self._asked_at is not None and self._clock.monotonic() - self._asked_at > SILENT_S

    def _ask_now(self) -> None:
        self._asked_at, self._asked_on = self._clock.monotonic(), self._clock.now()

    def _ask(self) -> _Answer:
        """On the board's thread; never raises for what a board may do, as nobody may be left."""
        nvml = self._session.nvml
        try:
            if self.handle is not None:
                nvml.prove_alive(self.handle)
                return _Answer()
            found = discovery.board(nvml, self._index, self._host, self._session.driver)
        except (NvmlError, ValueError) as error:
            return _Answer(error=error)
        return _Answer(found)

    def _learn(self, answer: _Answer) -> None:
        self.is_settled = True
        error = "" if answer.error is None else str(answer.error)
        if error != self._error:
            self._error, self._since = error, self._clock.now()
        if isinstance(answer.error, NvmlError) and answer.error.is_of_driver:
            self._session.is_over = True
        if answer.found is not None:
            self.gpu, self.handle = answer.found
        elif self.handle is None and answer.error is None:
            self.is_for_work, self.gpu = False, None


def of(
    session: Session,
    host: Host,
    clock: Clock,
    former: Mapping[PciAddress, Gpu],
    worker: Callable[[int], Worker],
) -> tuple[Board, ...]:
    """The boards that a session shows, none of them asked yet.

    Args:
        session: Just opened.
        host: Where procfs and sysfs are.
        clock: Since when something is wrong.
        former: Boards as the session before described them, if the driver is still the same one.
        worker: A thread that is free, for the board at an index.
    """
    return tuple(
        Board(session, index, host, clock, worker(index), former.get(place) if place else None)
        for index in range(session.count)
        for place in (_place(session.installation, session.count, index),)
    )


def _place(found: Installation, count: int, index: int) -> PciAddress | None:
    """Where the board at an index is, before it has said so; None where files and NVML differ."""
    return found.boards[index] if len(found.boards) == count else None


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
