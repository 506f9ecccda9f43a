# SPDX-License-Identifier: Apache-2.0
"""Supervises nvidia-imex: starts it, ends it, and restarts it when it has ended.

`lifecycle` decides what to do and when. The output of nvidia-imex goes to our standard output line
by line; the last line is kept, because it often says why the process has ended.
Source: docs/reference/imex.md, "Process supervision"; docs/reference/compute-domain.md, "Races and
correctness" (KW-27).
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
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.process.timeouts import wait_for_event
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import keys, logs
from nvdra_runtime.telemetry.active_span import ActiveSpan

from nvdra_imex_daemon.process import lifecycle
from nvdra_imex_daemon.process.child import ChildProcess
from nvdra_imex_daemon.process.lifecycle import ChildAction, ChildLifecycle, Phase

LOG = logs.logger(__name__)

RERESOLVE_SIGNAL: Final = signal.SIGUSR1
"""Makes IMEX resolve its peers' names again and connect to those that have changed."""

_HANDLER_BACKOFF: Final = Backoff(first_s=0.05, ceiling_s=2.0)
"""Intervals at which a new child is checked for having installed its signal handler."""
_KILL_TIMEOUT_S: Final = 2.0
"""How long to wait after SIGKILL: a process may hang in the driver."""
_DRAIN_TIMEOUT_S: Final = 0.5
"""How long to read on after the child's end: a process that it started may keep the pipe open."""
_CHUNK: Final = 65536
_MAX_LAST_LINE: Final = 200
_LOG_PREFIX: Final = re.compile(r"^(\[[^\]]*\]\s*)+")
"""Time and level at the beginning of IMEX's log lines, removed so that equal errors are equal."""


@dataclass(frozen=True, slots=True)
class ChildState:
    """The state of the child, as others see it.

    Attributes:
        phase: The current phase.
        run: Number of starts so far.
        pid: PID of the running child; 0 if none is running.
        began: When the phase began, monotonic seconds.
        failure: Why the last start or run failed; None once a child has worked.
    """

    phase: Phase = Phase.DOWN
    run: int = 0
    pid: int = 0
    began: float = 0.0
    failure: DriverError | None = None


class Supervisor:
    """Keeps nvidia-imex running from `start` to `pause` or `stop`.

    Attributes:
        state: The current state; each change replaces the object.
    """

    def __init__(
        self,
        argv: Sequence[str],
        prepare: Callable[[], Awaitable[None]],
        start_span: Callable[[], AbstractContextManager[ActiveSpan]],
        notify: Callable[[], None],
        count_end: Callable[[str], None],
    ) -> None:
        """Create a supervisor; `running` runs it.

        Args:
            argv: Program and arguments.
            prepare: Called before each start to write the files that the child reads. May raise a
                DriverError.
            start_span: Creates the span of a start.
            notify: Called when `state` has changed.
            count_end: Gets the reason of each end or failed start: `exit`, `signal`, `refused`,
                `hung`, or `replaced`.
        """
        self._argv = argv
        self._prepare = prepare
        self._start_span = start_span
        self._notify = notify
        self._count_end = count_end
        self._lifecycle = ChildLifecycle()
        self._child: ChildProcess | None = None
        self._last_line = ""
        self._changed = asyncio.Event()
        self._is_wanted = self._is_stale = self._is_stopping = False
        self._is_hung = False
        self._signal_at = math.inf
        self._signalled_at = -math.inf
        self._signal_attempts = 0
        self._output = Worker("imex-output")
        self._tasks = BackgroundTasks()
        self._task: asyncio.Task[None]
        self.state = ChildState()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Supervisor"]:
        """Supervise for the block. At its end the child is terminated, and killed if needed."""
        async with self._output, self._tasks:
            self._task = self._tasks.start("nvidia-imex", self._supervise)
            try:
                yield self
            finally:
                await self.stop()

    def start(self) -> None:
        """Start the child, and restart it whenever it ends."""
        if not self._is_wanted:
            self._is_wanted = True
            self._changed.set()

    def pause(self) -> None:
        """End the child until `start` is called again."""
        if self._is_wanted:
            self._is_wanted = False
            self._changed.set()

    def restart(self) -> None:
        """Replace the running child, because it must read its files again."""
        self._is_stale = self._lifecycle.phase is Phase.UP
        self._changed.set()

    def end_hung(self, silent_s: float) -> None:
        """Replace the running child, which hangs.

        Args:
            silent_s: How long it has not answered.
        """
        if self._lifecycle.phase is not Phase.UP:
            return
        failure = RetryableError(
            Reason.DAEMON_NOT_READY,
            f"nvidia-imex gave no answer for {silent_s:.0f} s: it hangs and is started again",
            "see its output in this pod's log; if it happens again, also the node's kernel log",
        )
        LOG.warning("Ending nvidia-imex, which hangs", pid=self.state.pid, error=failure)
        self._is_hung = True
        self._set_state(replace(self.state, failure=failure))
        self.restart()

    def reresolve_peers(self) -> None:
        """Make the running child resolve its peers' names again."""
        if self._lifecycle.phase is Phase.UP and math.isinf(self._signal_at):
            now = asyncio.get_running_loop().time()
            self._signal_at = lifecycle.signal_at(now, self._signalled_at)
            self._changed.set()

    @property
    def is_signal_due(self) -> bool:
        """Whether the running child will be signalled that its peers have changed."""
        return self._lifecycle.phase is Phase.UP and not math.isinf(self._signal_at)

    def clear_failure(self) -> None:
        """Forget earlier failures, because the running child works."""
        if self.state.failure is not None:
            self._set_state(replace(self.state, failure=None))

    async def stop(self) -> None:
        """End the child for good: SIGTERM, then SIGKILL after `lifecycle.TERMINATION_GRACE_S`."""
        self._is_wanted, self._is_stopping = False, True
        self._changed.set()
        await asyncio.wait((self._task,), timeout=lifecycle.TERMINATION_GRACE_S + _KILL_TIMEOUT_S)
        self._task.cancel()

    async def _supervise(self) -> None:
        try:
            while not (self._is_stopping and self._lifecycle.phase is Phase.DOWN):
                self._changed.clear()
                await self._step(asyncio.get_running_loop().time())
        finally:  # a failure too ends the child, so that the next run begins without one
            if self._child is not None:
                await self._child.close()

    async def _step(self, now: float) -> None:
        action = lifecycle.next_action(
            self._lifecycle, now, is_wanted=self._is_wanted, is_stale=self._is_stale
        )
        if action is ChildAction.START:
            await self._start_child()
        elif action is ChildAction.TERMINATE and self._child is not None:
            LOG.v(1, "Terminating nvidia-imex", pid=self._child.pid)
            self._child.send_signal(signal.SIGTERM)
            self._set_lifecycle(lifecycle.terminated(self._lifecycle, now))
        elif action is ChildAction.KILL and self._child is not None:
            LOG.warning("Killing nvidia-imex, which did not end", pid=self._child.pid)
            self._child.send_signal(signal.SIGKILL)
            self._set_lifecycle(lifecycle.killed(self._lifecycle))
        else:
            due = lifecycle.next_action_at(self._lifecycle, is_wanted=self._is_wanted)
            pause_s = min(due, self._send_due_signal(now)) - now
            await wait_for_event(self._changed, None if math.isinf(pause_s) else max(0.0, pause_s))

    async def _start_child(self) -> None:
        clock = asyncio.get_running_loop().time
        self._is_stale, self._is_hung, self._last_line = False, False, ""
        self._signal_at, self._signalled_at, self._signal_attempts = math.inf, -math.inf, 0
        try:
            with self._start_span() as span:
                await self._prepare()
                self._child = child = await ChildProcess.start(self._argv)
                span.set_attribute(keys.PID, child.pid)
        except DriverError as error:
            self._lifecycle = lifecycle.start_failed(self._lifecycle, clock(), _random_fraction())
            self._count_end("refused")
            self._set_lifecycle(self._lifecycle, failure=error)
            return
        LOG.v(1, "Started nvidia-imex", pid=child.pid, run=self.state.run + 1)
        self._lifecycle = lifecycle.started(self._lifecycle, clock())
        state = ChildState(
            Phase.UP, self.state.run + 1, child.pid, self._lifecycle.since, self.state.failure
        )
        self._tasks.start(
            "nvidia-imex child", partial(self._relay_until_ended, child), str(child.pid)
        )
        self._set_state(state)

    async def _relay_until_ended(self, child: ChildProcess) -> None:
        """Relay the child's output until the child has ended."""
        async with BackgroundTasks() as tasks:
            relay = tasks.start("nvidia-imex output", partial(self._relay_output, child))
            code = await child.wait_ended()
            await asyncio.wait((relay,), timeout=_DRAIN_TIMEOUT_S)
        if self._child is child:  # it is another one if this is repeated late
            await child.close()
            self._handle_end(code)
            self._child = None

    def _handle_end(self, code: int) -> None:
        is_expected = self._lifecycle.phase is Phase.ENDING
        life = lifecycle.ended(
            self._lifecycle, asyncio.get_running_loop().time(), _random_fraction()
        )
        how = lifecycle.describe_exit(code)
        if is_expected:
            LOG.v(1, "nvidia-imex has ended", how=how)
            if self._is_wanted:
                self._count_end("hung" if self._is_hung else "replaced")
            self._set_lifecycle(life)
        else:
            LOG.warning("nvidia-imex ended by itself", how=how, said=self._last_line)
            self._count_end("exit" if code >= 0 else "signal")
            last_line = f"; its last output was: {self._last_line}" if self._last_line else ""
            failure = RetryableError(
                Reason.DAEMON_NOT_READY,
                f"nvidia-imex ended by itself with {how}{last_line}",
                "it is restarted; see its output in this pod's log",
            )
            self._set_lifecycle(life, failure=failure)
        self._changed.set()

    async def _relay_output(self, child: ChildProcess) -> None:
        rest = b""
        while chunk := await child.output.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _CHUNK:
                lines.append(rest)
                rest = b""
            await self._write_lines(lines)
        await self._write_lines([rest] if rest else [])

    async def _write_lines(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        for line in lines:
            if text := _LOG_PREFIX.sub("", line.decode(errors="replace")).strip():
                self._last_line = text[:_MAX_LAST_LINE]
        await self._output.run(_write_stdout, b"\n".join(lines) + b"\n")

    def _send_due_signal(self, now: float) -> float:
        """Send the signal if it is due and the child handles it. Returns when to check again."""
        if self._child is None or self._lifecycle.phase is not Phase.UP or now < self._signal_at:
            return self._signal_at if self._lifecycle.phase is Phase.UP else math.inf
        if self._child.handles(RERESOLVE_SIGNAL):
            LOG.v(2, "Signalled nvidia-imex that its peers have changed", pid=self._child.pid)
            self._child.send_signal(RERESOLVE_SIGNAL)
            self._signal_at, self._signalled_at, self._signal_attempts = math.inf, now, 0
        else:
            self._signal_attempts += 1
            self._signal_at = now + _HANDLER_BACKOFF.delay(
                self._signal_attempts, _random_fraction()
            )
        return self._signal_at

    def _set_lifecycle(self, life: ChildLifecycle, failure: DriverError | None = None) -> None:
        self._lifecycle = life
        pid = 0 if life.phase is Phase.DOWN else self.state.pid
        self._set_state(
            replace(
                self.state,
                phase=life.phase,
                pid=pid,
                began=life.since,
                failure=failure or self.state.failure,
            )
        )

    def _set_state(self, state: ChildState) -> None:
        self.state = state
        self._notify()


def _random_fraction() -> float:
    return random.random()  # noqa: S311 - spreads load


def _write_stdout(data: bytes) -> None:
    # If our standard output is not read, the lines are lost, but the domain keeps working.
    with suppress(OSError):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
