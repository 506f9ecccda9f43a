# SPDX-License-Identifier: Apache-2.0
"""Inspects the node's GPUs again and again, and keeps the result: a `DeviceState`.

It inspects the driver's files, the device nodes, and the answers of one `GpuProbe` per GPU. A
driver that is installed, removed or replaced, a GPU that hangs, disappears or comes back, and a
missing device node are noticed within seconds, without a restart.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from nvdra_api.errors import Reason
from nvdra_cdi.errors import CDIError
from nvdra_cdi.nvidia.options import Options
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import CallObserver
from nvdra_runtime.process import timeouts
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker, WorkerGroup

from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.cdi.spec_updater import SpecState, SpecUpdater
from nvdra_gpu_plugin.devices.gpu_numbers import MINORS_ONLY, GpuNumbers
from nvdra_gpu_plugin.devices.inventory import Fault, Gpu
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.installation import DriverInstallation
from nvdra_gpu_plugin.driver.nvml_sessions import DriverUnavailable, NvmlSession, NvmlSessions
from nvdra_gpu_plugin.hardware import device_state, gpu_probe
from nvdra_gpu_plugin.hardware.device_state import DeviceState
from nvdra_gpu_plugin.hardware.event_watcher import EventWatcher
from nvdra_gpu_plugin.hardware.gpu_probe import UNRESPONSIVE_S, GpuProbe, MadeForClaims
from nvdra_gpu_plugin.hardware.nvml_reopen_policy import NvmlReopenPolicy, must_open

_INTERVAL_S: Final = 5.0
"""Between two inspections. One is some 200 `lstat` calls, a millisecond. Probes run by
themselves."""

_LAST_ANSWER_S: Final = 2.0
"""How long GPUs of a new session are waited for after the last one that has described itself. GPUs
in persistence mode take milliseconds, others 1 to 3 s, all about the same."""

_IDLE_TIMEOUT_S: Final = 1.0
"""How long calls in progress may take before a session is abandoned instead of closed."""

_BUSY_TIMEOUT_S: Final = UNRESPONSIVE_S
"""The same where the session is of use and no GPU is silent: a call that has begun meanwhile, or a
busy node, is waited for as long as any GPU that works needs. A session that is left open hides GPUs
that come later."""

_REOPENING_S: Final = 60.0
"""How long GPUs stay offered while NVML is opened again. Closing it takes long on a GPU whose
firmware does not answer: 45 s for each call (open-gpu-kernel-modules issue 446)."""

_RELEASE_TIMEOUT_S: Final = UNRESPONSIVE_S
"""The same when an administrator waits for the session to be closed: abandoning it ends the
process, so a GPU that just starts is waited for."""

_KEEP_REPLACED_S: Final = 600.0
"""How long the previous generation is kept for a claim that is just being prepared from it. The
kubelet's deadline is 45 s."""


class DeviceMonitor:
    """Keeps `state` up to date while `run` runs.

    Attributes:
        state: The result of the last inspection. It is replaced as a whole.
        serial: Increases with every change of the state.
        probes: The GPUs that NVML reports, described or not.
        discovered: Set after the first inspection, whatever its result is.
        is_usable: Set, except while the NVML session is being replaced.
    """

    def __init__(
        self,
        host: Host,
        spec_updater: SpecUpdater,
        clock: Clock,
        sessions: NvmlSessions,
        files: Worker,
        threads: WorkerGroup,
        is_released: bool = False,
        events: EventWatcher | None = None,
        made_for_claims: MadeForClaims = gpu_probe.nothing_made,
        finds_partitions: bool = False,
        numbers: GpuNumbers = MINORS_ONLY,
    ) -> None:
        self.state = DeviceState(node_fault=Fault("", "they have not been inspected yet"))
        self.serial = 0
        self.probes: tuple[GpuProbe, ...] = ()
        self.discovered = asyncio.Event()
        self.is_usable = asyncio.Event()
        self._host = host
        self._spec_updater = spec_updater
        self._clock = clock
        self._sessions = sessions
        self._files = files
        self._threads = threads
        self._events = events
        self._made_for_claims = made_for_claims
        self._finds_partitions = finds_partitions
        self._numbers = numbers
        self._workers: dict[int, Worker] = {}
        self._tasks = BackgroundTasks()
        self._session_tasks: list[asyncio.Task[None]] = []
        self._reopen_policy = NvmlReopenPolicy()
        self._opening_since = 0.0
        self._must_rebuild_spec = True
        self._spec_state: SpecState | None = None
        self._mig_instances: frozenset[str] = frozenset()
        self._replaced_at: dict[str, float] = {}
        self._woken = asyncio.Event()
        self._changed = asyncio.Condition()
        self._must_release = is_released
        self._is_released = asyncio.Event()
        self._is_inspected = asyncio.Event()

    @property
    def recent_generations(self) -> Collection[str]:
        """Generations that a claim may just be prepared from, although no record names them yet."""
        now = self._clock.monotonic()
        self._replaced_at = {
            name: at for name, at in self._replaced_at.items() if now - at < _KEEP_REPLACED_S
        }
        current = () if self._spec_state is None else (self._spec_state.spec.generation.name,)
        return {*self._replaced_at, *current}

    def wake(self) -> None:
        """Inspect the node at once, because a claim has found that something is wrong."""
        for probe in self.probes:
            probe.wake()
        self._woken.set()

    async def changed_since(self, serial: int) -> int:
        """Wait until `state` is newer than `serial`, and return its serial number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.serial > serial)
            return self.serial

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DeviceMonitor"]:
        """Inspect the node while the block runs, and close the NVML session at its end."""
        try:
            async with self._tasks:
                self._tasks.start("device monitor", self.run)
                yield self
        finally:
            await self._close_session()

    async def run(self) -> None:
        """Inspect the node every few seconds and when woken. Run until cancelled."""
        while True:
            must_release = self._must_release
            if must_release:
                await self._give_up_nvml()
            else:
                await self._set_state(await self._inspect_or_explain())
                self._is_inspected.set()
            if self._must_release == must_release:
                interval_s = None if must_release else _INTERVAL_S
                await timeouts.wait_for_event(self._woken, interval_s)
            self._woken.clear()

    async def release(self) -> bool:
        """Close the NVML session, and leave the GPUs alone until `resume`.

        Returns:
            Whether everything is closed. Otherwise a call hangs, and what it has open stays so
            until the process ends.
        """
        self._must_release = True
        self._woken.set()
        await self._is_released.wait()
        return not (self._sessions.has_abandoned or self._sessions.is_opening)

    async def resume(self) -> None:
        """Open NVML again, and return when the GPUs have been inspected."""
        self._must_release = False
        self._is_released.clear()
        self._is_inspected.clear()
        self._woken.set()
        await self._is_inspected.wait()

    async def _give_up_nvml(self) -> None:
        """Close the session. What is known of the GPUs stays as it is."""
        await self._close_session(_RELEASE_TIMEOUT_S)
        known = DeviceState() if self.serial == 0 else self.state
        await self._set_state(replace(known, is_released=True))
        self._is_released.set()

    async def _inspect_or_explain(self) -> DeviceState:
        """What is on the node, or why the GPUs cannot be used."""
        try:
            state = await self._inspect()
        except DriverUnavailable as error:
            if self._is_opening_in_time:
                # Claims wait for the session, and nobody is told that the GPUs are gone.
                return replace(self.state, node_fault=error.fault, is_released=False)
            state = DeviceState(node_fault=error.fault)
        except (OSError, CDIError) as error:
            # A file cannot be read at this moment; what is known stays offered, and each claim
            # proves its own GPU and files.
            text = f"a file of the driver cannot be read: {error}"
            fault = Fault("", text, Reason.DEVICE_NODE_MISSING)
            state = replace(self.state, node_fault=fault, is_released=False)
        self.is_usable.set()
        return state

    async def _inspect(self) -> DeviceState:
        """Find out what is on the node.

        Raises:
            DriverUnavailable: There is no driver, or it cannot be used.
        """
        try:
            found = await self._files.run(installation.read, self._host)
        except FileNotFoundError as error:
            await self._close_session()
            raise DriverUnavailable(Reason.DRIVER_MISMATCH, str(error)) from error
        await self._check_mig_instances()
        session, now = self._sessions.current, self._clock.monotonic()
        is_due = self._reopen_policy.is_due(session, self.probes, found, now)
        if is_due and (must_open(session, found) or await self._are_calls_done(_IDLE_TIMEOUT_S)):
            self._reopen_policy.begin()
            await self._reopen_nvml(found)
            await self._wait_first_answers()
        await self._files.run(self._numbers.keep)
        self._spec_state, self._must_rebuild_spec = await self._update_spec(found), False
        return device_state.derive(self.probes, self._spec_state)

    async def _reopen_nvml(self, found: DriverInstallation) -> None:
        """Open NVML again and start probes for its GPUs.

        Raises:
            DriverUnavailable: NVML does not work.
        """
        if not self._sessions.is_opening:
            self._opening_since = self._clock.monotonic()
            is_useless = must_open(self._sessions.current, found)
            await self._close_session(_IDLE_TIMEOUT_S if is_useless else _BUSY_TIMEOUT_S)
        session = await self._sessions.open(found)
        previous = {gpu.pci: gpu for gpu in self._known_gpus(session)}
        self.probes = gpu_probe.create_probes(
            session,
            self._host,
            self._clock,
            previous,
            self._worker,
            self._made_for_claims,
            self._finds_partitions,
            self._numbers,
        )
        self._reopen_policy.opened_at, self._must_rebuild_spec = self._clock.monotonic(), True
        self._session_tasks = [
            self._tasks.start("gpu", partial(probe.run, self._note_change), str(index))
            for index, probe in enumerate(self.probes)
        ]
        if self._events is not None:
            watch = partial(self._events.run, session, self.probes)
            self._session_tasks.append(self._tasks.start("gpu events", watch))

    async def _check_mig_instances(self) -> None:
        """Query GPUs at once whose MIG instances somebody has made or destroyed."""
        gpus = [each.gpu for each in self.probes if each.gpu is not None]
        if not any(gpu.is_mig_enabled or gpu.partitions for gpu in gpus):
            return
        found = await self._files.run(installation.mig_instances, self._host)
        changed = {installation.gpu_of_instance(path) for path in found ^ self._mig_instances}
        self._mig_instances = found
        for probe in self.probes:
            if probe.gpu is not None and probe.gpu.minor in changed:
                probe.wake()

    def _note_change(self) -> None:
        """Inspect the node, because a probe has another result."""
        self._woken.set()
        if self._events is not None:
            self._events.wake()

    async def _close_session(self, timeout_s: float = _IDLE_TIMEOUT_S) -> None:
        """Close the session, so that the driver can be unloaded. Claims wait for the next one.

        Args:
            timeout_s: How long calls in progress may take, and closing as well.
        """
        self.is_usable.clear()
        for task in self._session_tasks:
            task.cancel()
        self._session_tasks = []
        if await self._is_idle(timeout_s):
            await self._sessions.close(timeout_s)
        else:
            self._sessions.abandon()

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
        for each in waiting:
            each.cancel()
        return not waiting

    @property
    def _is_opening_in_time(self) -> bool:
        """Whether NVML is being opened again and may still answer."""
        if not self._sessions.is_opening or self.state.snapshot is None:
            return False
        return self._clock.monotonic() - self._opening_since < _REOPENING_S

    def _known_gpus(self, session: NvmlSession) -> Sequence[Gpu]:
        """The GPUs of the former session, if it had the same driver version."""
        gpus = [probe.gpu for probe in self.probes if probe.gpu is not None]
        return [gpu for gpu in gpus if gpu.driver_version == session.versions.driver]

    def _worker(self, index: int) -> Worker:
        """A thread for the GPU; a new one if the former one hangs in an abandoned session."""
        worker = self._workers.get(index)
        if worker is None or worker.is_busy:
            worker = self._workers[index] = self._threads.start_worker(f"gpu-{index}")
        return worker

    async def _wait_first_answers(self) -> None:
        """Wait until the GPUs of a new session have described themselves, except stragglers."""
        while any(probe.is_awaited for probe in self.probes) and not self._must_release:
            until = self._reopen_policy.opened_at + UNRESPONSIVE_S
            answers = [each.answered_at for each in self.probes if each.answered_at is not None]
            if answers:
                until = min(until, max(answers) + _LAST_ANSWER_S)
            remaining = until - self._clock.monotonic()
            if remaining <= 0 or not await timeouts.wait_for_event(self._woken, remaining):
                return
            self._woken.clear()

    async def _update_spec(self, found: DriverInstallation) -> SpecState:
        """Write the CDI spec of the GPUs.

        Raises:
            DriverUnavailable: The driver's files are missing, or the spec cannot be written.
        """
        known = (probe.gpu for probe in self.probes if probe.gpu is not None)
        return await self._files.run(
            self._spec_updater.update,
            tuple(sorted(known, key=lambda gpu: gpu.pci)),
            found.library_id,
            self._spec_state,
            self._must_rebuild_spec,
        )

    async def _set_state(self, state: DeviceState) -> None:
        """Replace the state if it differs. An equal snapshot stays the same object."""
        if state.snapshot == self.state.snapshot:
            state = replace(state, snapshot=self.state.snapshot)
        elif self.state.snapshot is not None:
            generation = self.state.snapshot.spec.generation.name
            self._replaced_at[generation] = self._clock.monotonic()
        if not self._sessions.is_opening and not state.is_released:
            self.discovered.set()
        if state != self.state:
            async with self._changed:
                self.state = state
                self.serial += 1
                self._changed.notify_all()


@asynccontextmanager
async def running(
    host: Host,
    options: Callable[[], Options],
    spec_files: SpecFiles,
    observe: CallObserver,
    clock: Clock,
    threads: WorkerGroup,
    files: Worker,
    is_released: bool,
    events: EventWatcher | None = None,
    made_for_claims: MadeForClaims = gpu_probe.nothing_made,
    finds_partitions: bool = False,
    numbers: GpuNumbers = MINORS_ONLY,
) -> AsyncIterator[DeviceMonitor]:
    """Monitor the node while the block runs. Leaving the block closes the NVML session.

    With `is_released`, NVML is not opened before `DeviceMonitor.resume` is called. With `events`,
    events of the GPUs are waited for in every session. MIG devices that are `made_for_claims` are
    no change of the node. With `finds_partitions`, MIG devices can be made for claims
    (`DynamicMIG`). GPUs are named after their `numbers`.
    """
    sessions = NvmlSessions(threads.start_worker("nvml"), observe)
    spec_updater = SpecUpdater(host, options, spec_files, clock)
    monitor = DeviceMonitor(
        host,
        spec_updater,
        clock,
        sessions,
        files,
        threads,
        is_released,
        events,
        made_for_claims,
        finds_partitions,
        numbers,
    )
    async with monitor.running():
        yield monitor


def _do_nothing() -> None:
    pass
