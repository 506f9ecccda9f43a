# SPDX-License-Identifier: Apache-2.0
"""The daemon's membership in one clique: join, configure IMEX's peers, report readiness, leave.

It is level-triggered: each reconciliation compares the whole desired state with the current one,
whatever has changed. Source: docs/reference/imex.md, "The daemon";
docs/reference/compute-domain.md, "Races and correctness" (KW-24 to 30).
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.timeouts import wait_for_event
from nvdra_runtime.telemetry import keys, logs

from nvdra_imex_daemon.configuration.peer_configurator import PeerConfigurator
from nvdra_imex_daemon.configuration.peers import PeerList
from nvdra_imex_daemon.domain_spans import DomainSpans
from nvdra_imex_daemon.membership import problems
from nvdra_imex_daemon.membership.entries import MemberStatus
from nvdra_imex_daemon.membership.member_list import MemberList, Superseded
from nvdra_imex_daemon.membership.problems import ProblemTracker
from nvdra_imex_daemon.process.imex_monitor import ImexMonitor
from nvdra_imex_daemon.process.supervisor import Supervisor

LOG = logs.logger(__name__)

_RESYNC_S: Final = 30.0
"""Interval of reconciliations without a change. Each reads the hosts file."""
_FAILURE_BACKOFF: Final = Backoff(first_s=0.2, ceiling_s=10.0)


@dataclass(frozen=True, slots=True)
class MembershipCallbacks:
    """Functions to call when the membership changes.

    Attributes:
        count_peers: Gets the numbers of ready peers and of others.
        report_problem: Gets an error to show to people.
        save_index: Gets our index, to store it for the next daemon on this node.
    """

    count_peers: Callable[[int, int], None]
    report_problem: Callable[[DriverError], None]
    save_index: Callable[[int], Awaitable[None]]


class Daemon:
    """Our membership in one clique.

    Attributes:
        index: Our index in the clique; None before we have joined.
        peer_list: The peers that IMEX is configured with.
        problem_tracker: Why we are not ready, and since when.
    """

    def __init__(
        self,
        member_list: MemberList,
        imex: ImexMonitor,
        peer_configurator: PeerConfigurator,
        supervisor: Supervisor,
        callbacks: MembershipCallbacks,
        spans: DomainSpans,
        clock: Clock,
    ) -> None:
        self._member_list = member_list
        self._imex = imex
        self._peer_configurator = peer_configurator
        self._supervisor = supervisor
        self._callbacks = callbacks
        self._spans = spans
        self._clock = clock
        self._changed = asyncio.Event()
        self._written_status: MemberStatus | None = None
        self._written_at = 0.0
        self._failures = 0
        self.index: int | None = None
        self.peer_list = PeerList((), ())
        # Not ready until the first reconciliation, which takes long if the API server is away.
        self.problem_tracker = ProblemTracker(_not_joined(), clock.now(), clock.monotonic())

    def wake(self) -> None:
        """Reconcile soon, because something may have changed."""
        self._changed.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Daemon"]:
        """Be a member for the block. At its end leave the clique and stop IMEX, both at once."""
        began = self._clock.now()
        try:
            async with background_tasks.running(
                members=self._watch_members, membership=partial(self._reconcile_loop, began)
            ):
                yield self
        finally:
            async with asyncio.TaskGroup() as shutdown:
                shutdown.create_task(self._leave(began), name="leave")
                shutdown.create_task(self._supervisor.stop(), name="end of nvidia-imex")

    async def _watch_members(self) -> None:
        serial = 0
        while True:
            serial = await self._member_list.changed_since(serial)
            self.wake()

    async def _reconcile_loop(self, began: datetime) -> None:
        while True:
            self._changed.clear()
            failure: DriverError | None = None
            try:
                pause_s = await self._reconcile(began)
            except DriverError as error:
                if isinstance(error, Superseded):
                    self._supervisor.pause()  # a node has one IMEX, which is our successor's now
                self._failures += 1
                pause_s = _FAILURE_BACKOFF.delay(self._failures, random.random())  # noqa: S311
                # Our turn to write must not be missed: those who come late come together.
                pause_s = min(pause_s, self._member_list.recheck_in_s)
                failure = error
                LOG.v(2, "Reconciling failed", error=error, retry_s=round(pause_s, 1))
            else:
                self._failures = 0
            report_in_s = self._report_problem(failure or self._imex.problem)
            await wait_for_event(self._changed, min(pause_s, report_in_s))

    async def _reconcile(self, began: datetime) -> float:
        """Bring everything up to date. Returns the seconds until the next reconciliation."""
        now = asyncio.get_running_loop().time()
        status = problems.member_status(self._imex.problem)
        delay_s = problems.write_delay_s(self._written_status, status, self._written_at, now)
        if delay_s and self._written_status is not None:
            status = self._written_status
        await self._write_status(status, began)
        assert self.index is not None
        entries, expected = self._member_list.entries(), self._member_list.expected_nodes()
        peer_list = await self._peer_configurator.apply(entries, expected, self.index)
        self._store_peer_list(peer_list)
        return min(delay_s or _RESYNC_S, self._member_list.recheck_in_s)

    async def _write_status(self, status: MemberStatus, began: datetime) -> None:
        index = await self._member_list.report(status)
        if self.index is None:
            self._spans.record("join clique", began, attributes={keys.INDEX: index})
        if status != self._written_status:
            self._written_status, self._written_at = status, asyncio.get_running_loop().time()
        if index != self.index:
            await self._callbacks.save_index(index)
        self.index = index

    def _store_peer_list(self, peer_list: PeerList) -> None:
        for problem in peer_list.problems:
            if problem not in self.peer_list.problems:
                LOG.warning("Ignoring an entry of the clique", problem=problem)
        self.peer_list = peer_list
        ready = sum(peer.is_ready for peer in peer_list.peers)
        self._callbacks.count_peers(ready, len(peer_list.peers) - ready)

    def _report_problem(self, error: DriverError | None) -> float:
        """Report the problem to people if it is time to. Returns the seconds until it is."""
        now = asyncio.get_running_loop().time()
        was_reported = bool(self.problem_tracker.reported)
        self.problem_tracker = self.problem_tracker.updated(error, self._clock.now(), now)
        if error is None:
            if was_reported:
                LOG.info("nvidia-imex is READY again", index=self.index)
            return math.inf
        due_s = self.problem_tracker.report_due_s(now)
        if due_s is None or due_s > 0:
            return math.inf if due_s is None else due_s
        error.since = error.since or self.problem_tracker.since
        LOG.warning("Not ready", reason=error.reason.value, error=error.message)
        self._callbacks.report_problem(error)
        self.problem_tracker = self.problem_tracker.marked_reported()
        return math.inf

    async def _leave(self, began: datetime) -> None:
        if self.index is None:
            self._spans.record(
                "join clique", began, self.problem_tracker.error or asyncio.CancelledError()
            )
        try:
            if await self._member_list.leave():
                LOG.info("Left the domain", index=self.index)
        except DriverError as error:
            LOG.warning("Could not leave the domain", reason=error.reason.value, error=error)


def _not_joined() -> DriverError:
    return RetryableError(
        Reason.DAEMON_NOT_READY,
        "this daemon has not joined its clique yet",
        "check whether the API server can be reached from this node",
    )
