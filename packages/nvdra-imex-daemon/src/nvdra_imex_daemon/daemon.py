"""One membership, start to end: join, tell the peers to IMEX, say whether it is READY, leave.

Level-triggered: every look compares what should be with what is, whatever the reason to look was.
Source: spec/compute-domain.md §8; §14.2 (KW-24 to 30).
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.process.waiting import within
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import keys
from nvdra_api.types.errors import DriverError, Reason, RetryableError

from nvdra_imex_daemon import standing
from nvdra_imex_daemon.entries import Report
from nvdra_imex_daemon.imex import Imex
from nvdra_imex_daemon.peering import Peering
from nvdra_imex_daemon.peers import Roster
from nvdra_imex_daemon.register import Register, Superseded
from nvdra_imex_daemon.standing import Complaint
from nvdra_imex_daemon.story import Story
from nvdra_imex_daemon.supervisor import Supervisor

LOG = logs.logger(__name__)

_LOOK_S: Final = 30.0
"""Between looks that nothing asked for: they cost a read of the hosts file."""
_FAILED: Final = Backoff(first_s=0.2, ceiling_s=10.0)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who else hears of the membership.

    Attributes:
        count_peers: Told how many peers are ready, and how many are not.
        complain: Told what is missing, for people.
        keep_place: Told our index, for a successor.
    """

    count_peers: Callable[[int, int], None]
    complain: Callable[[DriverError], None]
    keep_place: Callable[[int], Awaitable[None]]


class Daemon:
    """Our membership in one clique.

    Attributes:
        index: Our place; None before we have one.
        roster: The members as IMEX was last told.
        complaint: What keeps us from being ready, since when.
    """

    def __init__(
        self,
        register: Register,
        imex: Imex,
        peering: Peering,
        supervisor: Supervisor,
        listeners: Listeners,
        story: Story,
        clock: Clock,
    ) -> None:
        self._register = register
        self._imex = imex
        self._peering = peering
        self._supervisor = supervisor
        self._listeners = listeners
        self._story = story
        self._clock = clock
        self._moved = asyncio.Event()
        self._said: Report | None = None
        self._said_at = 0.0
        self._failures = 0
        self.index: int | None = None
        self.roster = Roster((), ())
        # The first look may take its time, where the API server is away: not ready before it.
        self.complaint = Complaint(_not_joined(), clock.now(), clock.monotonic())

    def wake(self) -> None:
        """Something may have changed: look again."""
        self._moved.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Daemon"]:
        """Be a member until the block is left; then leave, and end IMEX, whatever else failed."""
        began = self._clock.now()
        async with asyncio.TaskGroup() as group:
            tasks = {
                group.create_task(self._follow(), name="members"),
                group.create_task(self._look_on(began), name="membership"),
            }
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                async with asyncio.TaskGroup() as ending:
                    ending.create_task(self._leave(began), name="leave")
                    ending.create_task(self._supervisor.stop(), name="end of nvidia-imex")

    async def _follow(self) -> None:
        serial = 0
        while True:
            serial = await self._register.changed_since(serial)
            self.wake()

    async def _look_on(self, began: datetime) -> None:
        while True:
            self._moved.clear()
            obstacle: DriverError | None = None
            try:
                pause_s = await self._look(began)
            except DriverError as error:
                if isinstance(error, Superseded):
                    self._supervisor.rest()  # a node has one IMEX, and it is the successor's
                self._failures += 1
                pause_s = _FAILED.delay(self._failures, random.random())  # noqa: S311
                obstacle = error
                LOG.v(2, "Cannot be a member now", error=error, retry_s=round(pause_s, 1))
            else:
                self._failures = 0
            complain_s = self._complain(obstacle or self._imex.lack)
            await within(self._moved, min(pause_s, complain_s))

    async def _look(self, began: datetime) -> float:
        """Make everything as it should be; seconds until the next look that nobody asks for."""
        now = asyncio.get_running_loop().time()
        report = standing.report(self._imex.lack)
        wait_s = standing.held_back_s(self._said, report, self._said_at, now)
        await self._say(self._said if wait_s and self._said is not None else report, began)
        assert self.index is not None
        found, expected = self._register.entries(), self._register.expected()
        roster = await self._peering.apply(found, expected, self.index)
        self._note(roster)
        return wait_s or _LOOK_S

    async def _say(self, report: Report, began: datetime) -> None:
        index = await self._register.tell(report)
        if self.index is None:
            self._story.over("join clique", began, attributes={keys.INDEX: index})
        if report != self._said:
            self._said, self._said_at = report, asyncio.get_running_loop().time()
        if index != self.index:
            await self._listeners.keep_place(index)
        self.index = index

    def _note(self, roster: Roster) -> None:
        for problem in roster.problems:
            if problem not in self.roster.problems:
                LOG.warning("Left an entry of the clique out", problem=problem)
        self.roster = roster
        ready = sum(peer.is_ready for peer in roster.peers)
        self._listeners.count_peers(ready, len(roster.peers) - ready)

    def _complain(self, lack: DriverError | None) -> float:
        """Tell people what is missing, when it is time to; seconds until it is."""
        now = asyncio.get_running_loop().time()
        was_told = bool(self.complaint.told)
        self.complaint = self.complaint.after(lack, self._clock.now(), now)
        if lack is None:
            if was_told:
                LOG.info("nvidia-imex is READY again", index=self.index)
            return math.inf
        due_s = self.complaint.due_s(now)
        if due_s is None or due_s > 0:
            return math.inf if due_s is None else due_s
        lack.since = lack.since or self.complaint.since
        LOG.warning("Not ready", reason=lack.reason.value, error=lack.message)
        self._listeners.complain(lack)
        self.complaint = self.complaint.said()
        return math.inf

    async def _leave(self, began: datetime) -> None:
        if self.index is None:
            self._story.over("join clique", began, self.complaint.lack or asyncio.CancelledError())
        try:
            if await self._register.leave():
                LOG.info("Left the domain", index=self.index)
        except DriverError as error:
            LOG.warning("Could not leave the domain", reason=error.reason.value, error=error)


def _not_joined() -> DriverError:
    return RetryableError(
        Reason.DAEMON_NOT_READY,
        "this daemon has not joined its clique yet",
        "see whether the API server can be reached from this node",
    )
