# SPDX-License-Identifier: Apache-2.0
"""Opens and closes the NVML session of the node, with a probe for each of its GPUs.

`nvml_reopen_policy` says when; `DeviceMonitor` asks for it in each inspection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import WorkerGroup

from nvdra_gpu_plugin.driver.installation import DriverInstallation
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession, NvmlSessions
from nvdra_gpu_plugin.hardware import nvml_reopen_policy
from nvdra_gpu_plugin.hardware.discovery import Discovery
from nvdra_gpu_plugin.hardware.event_watcher import EventWatcher
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.nvml_reopen_policy import Action, Attempts, SessionFacts
from nvdra_gpu_plugin.hardware.probe_state import UNRESPONSIVE_S, Status

_LAST_ANSWER_S: Final = 2.0
"""How long GPUs of a new session are waited for after the last one that has described itself. GPUs
in persistence mode take milliseconds, others 1 to 3 s, all about the same."""

_IDLE_TIMEOUT_S: Final = 1.0
"""How long calls in progress may take before a session is abandoned instead of closed."""

_BUSY_TIMEOUT_S: Final = UNRESPONSIVE_S
"""The same where the session is of use and no GPU is silent: a call that has begun meanwhile, or a
busy node, is waited for as long as any GPU that works needs. A session that is left open hides GPUs
that come later."""

RELEASE_TIMEOUT_S: Final = UNRESPONSIVE_S
"""The same when an administrator waits for the session to be closed: abandoning it ends the
process, so a GPU that just starts is waited for."""

_REOPENING_S: Final = 60.0
"""How long GPUs stay offered while NVML is opened again. Closing it takes long on a GPU whose
firmware does not answer: 45 s for each call (open-gpu-kernel-modules issue 446)."""


class GpuSession:
    """The session, while the block of `running` runs.

    Attributes:
        probes: The GPUs that NVML reports, described or not. They stay when the session is closed.
        is_usable: Set, except while the session is being replaced.
    """

    def __init__(
        self,
        discovery: Discovery,
        clock: Clock,
        sessions: NvmlSessions,
        threads: WorkerGroup,
        events: EventWatcher | None,
        notify: Callable[[], None],
    ) -> None:
        """Create it without opening NVML.

        Args:
            discovery: Describes the GPUs.
            clock: For the time between two attempts.
            sessions: Opens NVML.
            threads: Where the GPUs' threads come from.
            events: Waits for the GPUs' events in every session; None for no events.
            notify: Called when a probe has another result.
        """
        self.probes: tuple[GpuProbe, ...] = ()
        self.is_usable = asyncio.Event()
        self._discovery = discovery
        self._clock = clock
        self._sessions = sessions
        self._threads = threads
        self._events = events
        self._notify = notify
        self._group = BackgroundTasks()
        self._tasks: list[asyncio.Task[None]] = []
        self._attempts = Attempts()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BackgroundTasks]:
        """Close the session at the end of the block, whose tasks are yielded."""
        try:
            async with self._group:
                yield self._group
        finally:
            await self.close()

    @property
    def is_opening(self) -> bool:
        """Whether NVML has not yet responded to being opened."""
        return self._sessions.is_opening

    @property
    def is_opening_in_time(self) -> bool:
        """Whether NVML is being opened and may still answer."""
        return self.is_opening and self._clock.monotonic() - self._attempts.began_at < _REOPENING_S

    @property
    def is_closed(self) -> bool:
        """Whether nothing is open. Otherwise a call hangs, and the process has to end for it."""
        return not (self._sessions.has_abandoned or self.is_opening)

    @property
    def first_answers_due_in(self) -> float:
        """How many seconds to wait until GPUs of a new session describe themselves, or any more.

        Stragglers are not waited for.
        """
        if not any(probe.status is Status.AWAITED for probe in self.probes):
            return 0.0
        until = self._attempts.opened_at + UNRESPONSIVE_S
        answers = [at for probe in self.probes if (at := probe.state.answered_at) is not None]
        return min(until, max(answers, default=until) + _LAST_ANSWER_S) - self._clock.monotonic()

    async def open_if_due(self, found: DriverInstallation) -> bool:
        """Open NVML if there is no session or another one may be better. Returns whether it is new.

        Raises:
            DriverUnavailable: NVML does not work.
        """
        plan = nvml_reopen_policy.plan(self._facts(found), self._attempts, self._clock.monotonic())
        self._attempts = plan.attempts
        if plan.action is Action.KEEP:
            return False
        if plan.action is Action.REOPEN and not await self._are_calls_done(_IDLE_TIMEOUT_S):
            return False
        self._attempts = plan.begun
        await self._open(found, plan.action)
        return True

    async def _open(self, found: DriverInstallation, action: Action) -> None:
        """Close the session, open another one, and probe its GPUs.

        Raises:
            DriverUnavailable: NVML does not work. If it does not answer, the next call waits on.
        """
        if not self.is_opening:
            self._attempts = replace(self._attempts, began_at=self._clock.monotonic())
            await self.close(_BUSY_TIMEOUT_S if action is Action.REOPEN else _IDLE_TIMEOUT_S)
        session = await self._sessions.open(found)
        self._attempts = replace(self._attempts, opened_at=self._clock.monotonic())
        self.probes = self._create_probes(session)
        self._tasks = [
            self._group.start("gpu", partial(probe.run, self._note_change), str(index))
            for index, probe in enumerate(self.probes)
        ]
        if self._events is not None:
            watch = partial(self._events.run, session, self.probes)
            self._tasks.append(self._group.start("gpu events", watch))

    async def close(self, timeout_s: float = _IDLE_TIMEOUT_S) -> None:
        """Close the session, so that the driver can be unloaded. Claims wait for the next one.

        Args:
            timeout_s: How long calls in progress may take, and closing as well.
        """
        self.is_usable.clear()
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        if await self._is_idle(timeout_s):
            await self._sessions.close(timeout_s)
        else:
            self._sessions.abandon()

    def _facts(self, found: DriverInstallation) -> SessionFacts:
        session, states = self._sessions.current, {probe.status for probe in self.probes}
        if session is None:
            return SessionFacts(is_useful=False)
        has_same_library = session.installation.library_id == found.library_id
        return SessionFacts(
            is_useful=has_same_library and not session.is_lost,
            has_overdue=Status.OVERDUE in states,
            is_current=session.installation == found,
            do_all_work=states <= {Status.WORKING},
            has_all=session.has_all_gpus,
        )

    def _create_probes(self, session: NvmlSession) -> tuple[GpuProbe, ...]:
        """Probes of a new session's GPUs. With another driver version, no GPU is known before."""
        known = [probe.gpu for probe in self.probes if probe.gpu is not None]
        previous = {gpu.pci: gpu for gpu in known if gpu.driver_version == session.versions.driver}
        addresses = session.pci_addresses or (None,) * session.count
        return tuple(
            GpuProbe(
                session,
                index,
                pci,
                None if pci is None else previous.get(pci),
                self._threads.idle_worker(f"gpu-{index}"),
                self._discovery,
                self._clock,
            )
            for index, pci in enumerate(addresses)
        )

    def _note_change(self) -> None:
        """Have the node inspected, because a probe has another result."""
        self._notify()
        if self._events is not None:
            self._events.wake()

    async def _is_idle(self, timeout_s: float) -> bool:
        """Whether no call of the session is in progress; waits shortly for those that are.

        The event set is freed, because NVML may keep its files open beyond the session.
        """
        if not await self._are_calls_done(timeout_s):
            return False
        return self._events is None or await self._events.close(timeout_s)

    async def _are_calls_done(self, timeout_s: float) -> bool:
        """Whether the calls that are in progress end within this time.

        A session that cannot be closed hides GPUs that came since: NVML counts who uses it, and
        looks for GPUs only when the first one comes.
        """
        asked = [probe.worker.submit(_do_nothing) for probe in self.probes]
        if not asked:
            return True
        _, waiting = await asyncio.wait(asked, timeout=timeout_s)
        for call in waiting:
            call.cancel()
        return not waiting


def _do_nothing() -> None:
    pass
