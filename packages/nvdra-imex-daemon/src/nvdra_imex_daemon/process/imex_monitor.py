# SPDX-License-Identifier: Apache-2.0
"""Monitors whether IMEX on this node is READY, and if not, why.

It combines what the supervisor knows of the process with what IMEX says of itself.
Source: docs/reference/imex.md, "The check command", "Process supervision".
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_runtime.computedomain import imex_ctl
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.timeouts import wait_for_event
from nvdra_runtime.telemetry import keys, logs

from nvdra_imex_daemon.domain_spans import DomainSpans
from nvdra_imex_daemon.membership import problems
from nvdra_imex_daemon.process import query_interval
from nvdra_imex_daemon.process.lifecycle import Phase
from nvdra_imex_daemon.process.supervisor import ChildState, Supervisor

LOG = logs.logger(__name__)

_STARTING: Final = "nvidia-imex is starting"
_REMEDY: Final = "see its output in this pod's log"


class ImexMonitor:
    """Queries IMEX while it is running: often until it is READY, seldom afterwards."""

    def __init__(
        self,
        query_status: Callable[[], Awaitable[str]],
        notify: Callable[[], None],
        spans: DomainSpans,
        clock: Clock,
        hang_timeout_s: float,
    ) -> None:
        """Create a monitor; `running` runs it.

        Args:
            query_status: Asks IMEX. Returns why it is not READY; empty if it is.
            notify: Called when `problem` has changed.
            spans: Gets the span from the start to READY.
            clock: Clock of that span.
            hang_timeout_s: How long IMEX may run without any answer before it is replaced.
        """
        self._query_status = query_status
        self._notify = notify
        self._spans = spans
        self._clock = clock
        self._hang_timeout_s = hang_timeout_s
        self._answered_at = 0.0
        self._changed = asyncio.Event()
        self._child_state = ChildState()
        self._started_at: datetime | None = None
        self.problem: DriverError | None = _not_ready("nvidia-imex has not been started yet")
        """Why IMEX is not READY; None if it is."""

    def child_changed(self) -> None:
        """Note that the supervisor's `state` has changed."""
        self._changed.set()

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator["ImexMonitor"]:
        """Monitor IMEX for the block."""
        async with background_tasks.running(nvidia_imex_ctl=partial(self._run, supervisor)):
            yield self

    async def _run(self, supervisor: Supervisor) -> None:
        not_ready_answers = 0
        while True:
            self._changed.clear()
            if self._observe_child(supervisor.state):
                not_ready_answers = 0
            state = self._child_state
            if state.phase is not Phase.UP:
                await self._changed.wait()
                continue
            problem = await self._query_problem()
            if supervisor.state.run != state.run or supervisor.state.phase is not Phase.UP:
                continue  # the answer was about a process that has ended
            not_ready_answers = 0 if problem is None else not_ready_answers + 1
            self._end_if_hung(problem, supervisor)
            if problem is None:
                supervisor.clear_failure()
            self._set_problem(problems.with_earlier_failure(problem, state.failure))
            random_fraction = random.random()  # noqa: S311 - spreads load
            pause_s = query_interval.seconds_until_next(not_ready_answers, random_fraction)
            await wait_for_event(self._changed, pause_s)

    def _observe_child(self, state: ChildState) -> bool:
        """Take over the child's state. Returns whether the child was started or has ended."""
        before, self._child_state = self._child_state, state
        is_new = (state.run, state.phase) != (before.run, before.phase)
        if is_new and state.phase is Phase.UP:
            self._started_at = self._clock.now()
            self._answered_at = self._clock.monotonic()
            self._set_problem(state.failure or _not_ready(_STARTING))
        elif state.phase is not Phase.UP and (state.run or state.failure):
            failure = state.failure or _not_ready("nvidia-imex is not running")
            self._end_ready_span(failure)
            self._set_problem(failure)
        return is_new

    def _end_if_hung(self, problem: DriverError | None, supervisor: Supervisor) -> None:
        """End an IMEX that has not answered for so long that it will not by itself.

        An nvidia-imex-ctl that cannot be run says nothing of IMEX.
        """
        now = self._clock.monotonic()
        is_asked = problem is None or problem.reason is Reason.DAEMON_NOT_READY
        if not is_asked or imex_ctl.is_answer("" if problem is None else problem.message):
            self._answered_at = now
        elif now - self._answered_at >= self._hang_timeout_s:
            supervisor.end_hung(now - self._answered_at)
            self._answered_at = now

    async def _query_problem(self) -> DriverError | None:
        try:
            reason = await self._query_status()
        except DriverError as error:
            return error
        return _not_ready(reason) if reason else None

    def _set_problem(self, problem: DriverError | None) -> None:
        if problem is None:
            self._end_ready_span(None)
        if _text(problem) != _text(self.problem):
            self.problem = problem
            self._notify()

    def _end_ready_span(self, failure: DriverError | None) -> None:
        """Write the span of the wait for READY, which has ended with or without success."""
        if self._started_at is not None:
            attributes = {keys.PID: self._child_state.pid} if self._child_state.pid else {}
            self._spans.record("imex ready", self._started_at, failure, attributes)
            self._started_at = None


def _not_ready(text: str) -> DriverError:
    return RetryableError(Reason.DAEMON_NOT_READY, text, _REMEDY)


def _text(error: DriverError | None) -> str:
    return str(error) if error is not None else ""
