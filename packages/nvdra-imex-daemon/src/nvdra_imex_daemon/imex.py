"""IMEX on this node: is it READY, and if not, what is missing?

Puts together what the supervisor knows of the process and what the process says of itself.
Source: spec/compute-domain.md §§8.2, 8.7; design.md, "Watch, do not poll".
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

from nvdra_api.runtime.process import background
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.process.waiting import within
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types import keys
from nvdra_api.types.errors import DriverError, Reason, RetryableError

from nvdra_imex_daemon import asking, standing
from nvdra_imex_daemon.lifecycle import Phase
from nvdra_imex_daemon.story import Story
from nvdra_imex_daemon.supervisor import State, Supervisor

LOG = logs.logger(__name__)

_STARTING: Final = "nvidia-imex is starting"
_REMEDY: Final = "see its output in this pod's log"


class Imex:
    """Asks whenever there is somebody to ask: often while it is forming, seldom when it works."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[str]],
        note: Callable[[], None],
        story: Story,
        clock: Clock,
    ) -> None:
        """Prepare; `running` asks.

        Args:
            ask: What is missing for READY; empty when nothing is.
            note: Told whenever `lack` changed.
            story: For the span from start to READY.
            clock: For that span.
        """
        self._ask = ask
        self._note = note
        self._story = story
        self._clock = clock
        self._moved = asyncio.Event()
        self._seen = State()
        self._began: datetime | None = None
        self.lack: DriverError | None = _lacking("nvidia-imex has not been started yet")
        """What is missing for READY; None when it is READY."""

    def child_moved(self) -> None:
        """The supervisor's `state` changed."""
        self._moved.set()

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator["Imex"]:
        """Ask until the block is left."""
        async with background.tasks(nvidia_imex_ctl=self._run(supervisor)):
            yield self

    async def _run(self, supervisor: Supervisor) -> None:
        unready = 0
        while True:
            self._moved.clear()
            if self._take(supervisor.state):
                unready = 0
            state = self._seen
            if state.phase is not Phase.UP:
                await self._moved.wait()
                continue
            lack = await self._answer()
            if supervisor.state.run != state.run or supervisor.state.phase is not Phase.UP:
                continue  # it answered for one that is gone
            unready = 0 if lack is None else unready + 1
            if lack is None:
                supervisor.proved()
            self._tell(standing.with_past(lack, state.failure))
            await within(self._moved, asking.pause_s(unready, random.random()))  # noqa: S311

    def _take(self, state: State) -> bool:
        """See what became of the child; is it another, or none?"""
        former, self._seen = self._seen, state
        is_new = (state.run, state.phase) != (former.run, former.phase)
        if is_new and state.phase is Phase.UP:
            self._began = self._clock.now()
            self._tell(state.failure or _lacking(_STARTING))
        elif state.phase is not Phase.UP and (state.run or state.failure):
            failure = state.failure or _lacking("nvidia-imex does not run")
            self._end(failure)
            self._tell(failure)
        return is_new

    async def _answer(self) -> DriverError | None:
        try:
            said = await self._ask()
        except DriverError as error:
            return error
        return _lacking(said) if said else None

    def _tell(self, lack: DriverError | None) -> None:
        if lack is None:
            self._end(None)
        if _text(lack) != _text(self.lack):
            self.lack = lack
            self._note()

    def _end(self, failure: DriverError | None) -> None:
        """The wait for READY is over, well or badly."""
        if self._began is not None:
            attributes = {keys.PID: self._seen.pid} if self._seen.pid else {}
            self._story.over("imex ready", self._began, failure, attributes)
            self._began = None


def _lacking(text: str) -> DriverError:
    return RetryableError(Reason.DAEMON_NOT_READY, text, _REMEDY)


def _text(error: DriverError | None) -> str:
    return str(error) if error is not None else ""
