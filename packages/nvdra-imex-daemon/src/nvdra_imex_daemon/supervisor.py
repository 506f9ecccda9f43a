"""nvidia-imex: one task owns it, starts it, ends it, and starts it again when it dies.

What to do and when is `lifecycle`'s to decide. Its output goes to our standard output as it is,
line by line; the last line is kept, because it often says why it ended.
Source: spec/compute-domain.md §8.7, §14.2 (KW-27).
"""

import asyncio
import math
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.process.waiting import within
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.active import ActiveSpan
from nvdra_api.types import keys
from nvdra_api.types.errors import DriverError, Reason, RetryableError

from nvdra_imex_daemon import lifecycle
from nvdra_imex_daemon.child import Child
from nvdra_imex_daemon.lifecycle import Act, Life, Phase

LOG = logs.logger(__name__)

REREAD: Final = signal.SIGUSR1
"""Makes it resolve its peers' names again, and connect to those that changed."""

_HEARING: Final = Backoff(first_s=0.05, ceiling_s=2.0)
"""Between two looks whether a child that was just started has its handler by now."""
_GONE_S: Final = 2.0
"""From SIGKILL to the end of our patience: a process may hang in the driver."""
_DRAIN_S: Final = 0.5
"""For the rest of the output, once the child is gone: what it started may hold the pipe open."""
_CHUNK: Final = 65536
_LONGEST_LAST: Final = 200
_STAMP: Final = re.compile(r"^(\[[^\]]*\]\s*)+")
"""Time and level before a line of IMEX's log; without them the same complaint is the same text."""


@dataclass(frozen=True, slots=True)
class State:
    """The child as others see it.

    Attributes:
        phase: Where it is.
        run: Number of the child that runs or ran last, from 1; 0 before the first.
        pid: Of the child that runs; 0 when none does.
        began: When the phase began, monotonic seconds.
        failure: Why the last attempt came to nothing; None once a child has proved to work.
    """

    phase: Phase = Phase.DOWN
    run: int = 0
    pid: int = 0
    began: float = 0.0
    failure: DriverError | None = None


class Supervisor:
    """Keeps nvidia-imex running while it is wanted.

    Attributes:
        state: The child now; swapped whole.
    """

    def __init__(
        self,
        argv: Sequence[str],
        prepare: Callable[[], Awaitable[None]],
        starting: Callable[[], AbstractContextManager[ActiveSpan]],
        note: Callable[[], None],
        note_end: Callable[[str], None],
    ) -> None:
        """Prepare; `running` supervises.

        Args:
            argv: Program and arguments.
            prepare: Called before each start: makes the files true, or raises a DriverError.
            starting: The span of one start.
            note: Told whenever `state` changed.
            note_end: Told why a child is gone, or was not started: `exit`, `signal`, `refused`, or
                `replaced` where it had to make way.
        """
        self._argv = argv
        self._prepare = prepare
        self._starting = starting
        self._note = note
        self._note_end = note_end
        self._life = Life()
        self._child: Child | None = None
        self._last_line = ""
        self._moved = asyncio.Event()
        self._is_wanted = self._is_stale = self._is_stopping = False
        self._signal_at = math.inf
        self._signalled_at = -math.inf
        self._unheard = 0
        self._output = Worker("imex-output")
        self._group = asyncio.TaskGroup()
        self._task: asyncio.Task[None]
        self.state = State()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Supervisor"]:
        """Supervise until the block is left; then the child is ended, killed if need be."""
        async with self._output, self._group:
            self._task = self._group.create_task(self._supervise(), name="nvidia-imex")
            try:
                yield self
            finally:
                await self.stop()

    def want(self) -> None:
        """There should be a child."""
        if not self._is_wanted:
            self._is_wanted = True
            self._moved.set()

    def rest(self) -> None:
        """There should be none until it is wanted again."""
        if self._is_wanted:
            self._is_wanted = False
            self._moved.set()

    def restart(self) -> None:
        """What the running child read at its start is not true any more: it makes way."""
        self._is_stale = self._life.phase is Phase.UP
        self._moved.set()

    def reread(self) -> None:
        """The running child resolves its peers' names again; a later one does so anyway."""
        if self._life.phase is Phase.UP and math.isinf(self._signal_at):
            now = asyncio.get_running_loop().time()
            self._signal_at = lifecycle.signal_at(now, self._signalled_at)
            self._moved.set()

    def proved(self) -> None:
        """The running child works: what went wrong before is over."""
        if self.state.failure is not None:
            self._tell(replace(self.state, failure=None))

    async def stop(self) -> None:
        """End the child: SIGTERM, and SIGKILL after `lifecycle.TERM_S`; returns when it is gone."""
        self._is_wanted, self._is_stopping = False, True
        self._moved.set()
        await asyncio.wait((self._task,), timeout=lifecycle.TERM_S + _GONE_S)
        self._task.cancel()

    async def _supervise(self) -> None:
        try:
            while not (self._is_stopping and self._life.phase is Phase.DOWN):
                self._moved.clear()
                await self._turn(asyncio.get_running_loop().time())
        finally:
            if self._child is not None:
                await self._child.close()

    async def _turn(self, now: float) -> None:
        act = lifecycle.act(self._life, now, is_wanted=self._is_wanted, is_stale=self._is_stale)
        if act is Act.START:
            await self._start()
        elif act is Act.TERMINATE and self._child is not None:
            LOG.v(1, "Ending nvidia-imex", pid=self._child.pid)
            self._child.send(signal.SIGTERM)
            self._become(lifecycle.terminated(self._life, now))
        elif act is Act.KILL and self._child is not None:
            LOG.warning("Killing nvidia-imex, which did not end", pid=self._child.pid)
            self._child.send(signal.SIGKILL)
            self._become(lifecycle.killed(self._life))
        else:
            due = lifecycle.next_act(self._life, is_wanted=self._is_wanted)
            pause_s = min(due, self._next_signal(now)) - now
            await within(self._moved, None if math.isinf(pause_s) else max(0.0, pause_s))

    async def _start(self) -> None:
        clock = asyncio.get_running_loop().time
        self._is_stale, self._last_line = False, ""
        self._signal_at, self._signalled_at, self._unheard = math.inf, -math.inf, 0
        try:
            with self._starting() as span:
                await self._prepare()
                self._child = child = await Child.start(self._argv)
                span.set(keys.PID, child.pid)
        except DriverError as error:
            self._life = lifecycle.refused(self._life, clock(), _chance())
            self._note_end("refused")
            self._become(self._life, failure=error)
            return
        LOG.v(1, "Started nvidia-imex", pid=child.pid, run=self.state.run + 1)
        self._life = lifecycle.started(self._life, clock())
        state = State(Phase.UP, self.state.run + 1, child.pid, self._life.since, self.state.failure)
        self._group.create_task(self._follow(child), name=f"nvidia-imex {child.pid}")
        self._tell(state)

    async def _follow(self, child: Child) -> None:
        """Relay what it writes, until it is gone."""
        async with asyncio.TaskGroup() as group:
            relay = group.create_task(self._relay(child))
            code = await child.ended()
            await asyncio.wait((relay,), timeout=_DRAIN_S)
            relay.cancel()
        await child.close()
        self._child = None
        self._ended(code)

    def _ended(self, code: int) -> None:
        was_asked = self._life.phase is Phase.ENDING
        life = lifecycle.ended(self._life, asyncio.get_running_loop().time(), _chance())
        how = lifecycle.end_of(code)
        if was_asked:
            LOG.v(1, "Ended nvidia-imex", how=how)
            if self._is_wanted:
                self._note_end("replaced")
            self._become(life)
        else:
            LOG.warning("nvidia-imex ended by itself", how=how, said=self._last_line)
            self._note_end("exit" if code >= 0 else "signal")
            said = f"; it said last: {self._last_line}" if self._last_line else ""
            failure = RetryableError(
                Reason.DAEMON_NOT_READY,
                f"nvidia-imex ended by itself with {how}{said}",
                "it is started again; its output is in this pod's log",
            )
            self._become(life, failure=failure)
        self._moved.set()

    async def _relay(self, child: Child) -> None:
        rest = b""
        while chunk := await child.output.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _CHUNK:
                lines.append(rest)
                rest = b""
            await self._write(lines)
        await self._write([rest] if rest else [])

    async def _write(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        for line in lines:
            if text := _STAMP.sub("", line.decode(errors="replace")).strip():
                self._last_line = text[:_LONGEST_LAST]
        await self._output.run(_print, b"\n".join(lines) + b"\n")

    def _next_signal(self, now: float) -> float:
        """Send the signal that is due, if the child hears it by now; when to look again."""
        if self._child is None or self._life.phase is not Phase.UP or now < self._signal_at:
            return self._signal_at if self._life.phase is Phase.UP else math.inf
        if self._child.hears(REREAD):
            LOG.v(2, "Told nvidia-imex that peers changed", pid=self._child.pid)
            self._child.send(REREAD)
            self._signal_at, self._signalled_at, self._unheard = math.inf, now, 0
        else:
            self._unheard += 1
            self._signal_at = now + _HEARING.delay(self._unheard, _chance())
        return self._signal_at

    def _become(self, life: Life, failure: DriverError | None = None) -> None:
        self._life = life
        pid = 0 if life.phase is Phase.DOWN else self.state.pid
        self._tell(
            replace(
                self.state,
                phase=life.phase,
                pid=pid,
                began=life.since,
                failure=failure or self.state.failure,
            )
        )

    def _tell(self, state: State) -> None:
        self.state = state
        self._note()


def _chance() -> float:
    return random.random()  # noqa: S311 - spreads load


def _print(data: bytes) -> None:
    # A reader that went away takes the lines with it, not the domain.
    with suppress(OSError):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
