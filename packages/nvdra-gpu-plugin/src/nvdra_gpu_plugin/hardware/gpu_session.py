# SPDX-License-Identifier: Apache-2.0
"""The NVML session of the node with a probe for each GPU, opened when `nvml_reopen_policy` says."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from nvdra_runtime.process import timeouts
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import WorkerGroup

from nvdra_gpu_plugin.driver.installation import DriverInstallation
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession, NvmlSessions
from nvdra_gpu_plugin.hardware import nvml_reopen_policy
from nvdra_gpu_plugin.hardware.discovery import Discovery
from nvdra_gpu_plugin.hardware.event_watcher import EventWatcher
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.nvml_reopen_policy import Action, Attempts
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
    """The session.

    Attributes:
        nvml: Opens the session.
        probes: The GPUs that NVML reports, described or not. They stay when the session is closed.
        is_usable: Set, except while the session is being replaced.
        is_wanted: Whether there is to be a session: an administrator may want none.
        woken: Set when a GPU has another result, or by anyone who wants the node inspected.
        tasks: Those of the open session.
    """

    def __init__(
        self,
        discovery: Discovery,
        clock: Clock,
        nvml: NvmlSessions,
        threads: WorkerGroup,
        events: EventWatcher | None,
    ) -> None:
        self.nvml = nvml
        self.probes: tuple[GpuProbe, ...] = ()
        self.is_usable = asyncio.Event()
        self.is_wanted = True
        self.woken = asyncio.Event()
        self.tasks = BackgroundTasks()
        self._discovery = discovery
        self._clock = clock
        self._threads = threads
        self._events = events
        self._attempts = Attempts()

    @property
    def is_opening_in_time(self) -> bool:
        """Whether NVML is being opened and may still answer."""
        passed_s = self._clock.monotonic() - self._attempts.began_at
        return self.nvml.is_opening and passed_s < _REOPENING_S

    def wake(self) -> None:
        """Query all GPUs at once, and have the node inspected."""
        for probe in self.probes:
            probe.wake()
        self.woken.set()

    async def open_if_due(self, found: DriverInstallation) -> bool:
        """Open NVML if there is no session or another one may be better. Returns whether it is new.

        Raises:
            DriverUnavailable: NVML does not work.
        """
        states, now = {probe.status for probe in self.probes}, self._clock.monotonic()
        action, attempts = nvml_reopen_policy.plan(
            self.nvml.current, states, found, self._attempts, now
        )
        if action is Action.REOPEN and not await self._are_calls_done(_IDLE_TIMEOUT_S):
            return False
        self._attempts = attempts
        if action is Action.KEEP:
            return False
        await self._open(found, action)
        await self._wait_first_answers()
        return True

    async def _open(self, found: DriverInstallation, action: Action) -> None:
        """Close the session, open another one, and probe its GPUs.

        Raises:
            DriverUnavailable: NVML does not work. If it does not answer, the next call waits on.
        """
        if not self.nvml.is_opening:
            self._attempts = replace(self._attempts, began_at=self._clock.monotonic())
            await self.close(_BUSY_TIMEOUT_S if action is Action.REOPEN else _IDLE_TIMEOUT_S)
        session = await self.nvml.open(found)
        self._attempts = replace(self._attempts, opened_at=self._clock.monotonic())
        self.probes = self._create_probes(session)
        for index, probe in enumerate(self.probes):
            self.tasks.start("gpu", partial(probe.run, self._note_change), str(index))
        if self._events is not None:
            watch = partial(self._events.run, session, self.probes)
            self.tasks.start("gpu events", watch)

    async def close(self, timeout_s: float = _IDLE_TIMEOUT_S) -> None:
        """Close the session, so that the driver can be unloaded. Claims wait for the next one.

        Args:
            timeout_s: How long calls in progress may take, and closing as well.
        """
        self.is_usable.clear()
        self.tasks.cancel()
        is_idle = await self._are_calls_done(timeout_s)
        if is_idle and self._events is not None:
            # NVML may keep the files of the event set open beyond the session.
            is_idle = await self._events.close(timeout_s)
        if is_idle:
            await self.nvml.close(timeout_s)
        else:
            self.nvml.abandon()

    async def _wait_first_answers(self) -> None:
        """Wait until the GPUs of a new session have described themselves, except stragglers."""
        while self.is_wanted and any(probe.status is Status.AWAITED for probe in self.probes):
            until = self._attempts.opened_at + UNRESPONSIVE_S
            answers = [at for probe in self.probes if (at := probe.state.answered_at) is not None]
            until = min(until, max(answers, default=until) + _LAST_ANSWER_S)
            remaining = until - self._clock.monotonic()
            if remaining <= 0 or not await timeouts.wait_for_event(self.woken, remaining):
                return
            self.woken.clear()

    def _create_probes(self, session: NvmlSession) -> tuple[GpuProbe, ...]:
        """Probes of a new session's GPUs. With another driver version, no GPU is known before."""
        known = [probe.gpu for probe in self.probes if probe.gpu is not None]
        previous = {gpu.pci: gpu for gpu in known if gpu.driver_version == session.versions.driver}
        probes = []
        for index, pci in enumerate(session.pci_addresses or (None,) * session.count):
            gpu = None if pci is None else previous.get(pci)
            worker = self._threads.idle_worker(f"gpu-{index}")
            probe = GpuProbe(session, index, pci, gpu, worker, self._discovery, self._clock)
            probes.append(probe)
        return tuple(probes)

    def _note_change(self) -> None:
        """Have the node inspected, because a probe has another result."""
        self.woken.set()
        if self._events is not None:
            self._events.wake()

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
