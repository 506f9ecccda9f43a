# SPDX-License-Identifier: Apache-2.0
"""Waits for what GPUs report by themselves, such as XIDs, on a thread of its own.

All GPUs of an NVML session are in one event set. NVML cannot be told to end a wait, so that the
thread waits in short slices; no lock is held meanwhile. A lost GPU makes every wait fail at once:
the others are then moved to a set without it. `DeviceMonitor` runs it as long as the session.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nvdra_api.ids import GpuUUID
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode
from nvdra_runtime.node.nvml_events import Event, EventSet, EventType
from nvdra_runtime.process import timeouts
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.process.worker import Worker, WorkerGroup
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.probe_state import UNRESPONSIVE_S, Status

LOG = logs.logger(__name__)

_WANTED: Final = (
    EventType.XID
    | EventType.DOUBLE_BIT_ECC_ERROR
    | EventType.SINGLE_BIT_ECC_ERROR
    | EventType.MIG_CHANGE
)

_SLICE_MS: Final = 250
"""How long one wait in NVML lasts, and so how long at most a release is kept waiting."""

_REGISTER_AGAIN_S: Final = 60.0
"""After this time without events, GPUs that could not be registered are tried again."""

_BATCH: Final = 256
_PAUSE_S: Final = 0.1
"""After each batch of events. An application that fails in a loop causes thousands a second."""

_FAILURE_BACKOFF: Final = Backoff(first_s=0.2, ceiling_s=10)


class EventWatcher:
    """Waits for the events of one node's GPUs."""

    def __init__(
        self,
        threads: WorkerGroup,
        report: Callable[[Sequence[Event]], None],
        report_unmonitored: Callable[[Mapping[GpuUUID, str]], None],
    ) -> None:
        """Create it without any call.

        Args:
            threads: Where its thread comes from.
            report: Called with events in the order in which they happened.
            report_unmonitored: Called when other GPUs do not report XIDs, with the reasons.
        """
        self._unmonitored: Mapping[GpuUUID, str] = {}
        self._threads = threads
        self._report = report
        self._report_unmonitored = report_unmonitored
        self._session: NvmlSession | None = None
        self._worker: Worker | None = None
        self._changed = asyncio.Event()
        self._interrupt = threading.Event()
        self._sets: list[EventSet] = []  # changed on the thread only
        self._current: EventSet | None = None
        self._registered: set[GpuUUID] = set()
        self._failed: set[GpuUUID] = set()

    def wake(self) -> None:
        """Look at the GPUs again: one of them has answered or failed."""
        self._changed.set()
        self._interrupt.set()

    async def run(self, session: NvmlSession, probes: Sequence[GpuProbe]) -> None:
        """Report the events of a session's GPUs. Run until cancelled; then call `close`."""
        if session is not self._session:
            self._worker = self._threads.idle_worker("nvml-events")
            self._session, self._sets = session, []
        assert self._worker is not None
        self._current = None
        try:
            await self._watch(session, probes, self._worker)
        finally:
            self._interrupt.set()  # the thread is free if this is run again

    async def _watch(
        self, session: NvmlSession, probes: Sequence[GpuProbe], worker: Worker
    ) -> None:
        failures = 0
        await worker.run(_do_nothing)  # an earlier run's wait has ended
        while True:
            self._changed.clear()
            self._interrupt.clear()
            try:
                events = await self._registered_set(worker, session.nvml, probes)
                if events is None:
                    await timeouts.wait_for_event(self._changed, _REGISTER_AGAIN_S)
                    continue
                found = await worker.run(_wait, events, self._interrupt)
            except NvmlError as error:
                # A lost GPU is told apart by its own probe, so that only this one is withdrawn.
                LOG.v(2, "Events of GPUs cannot be waited for", error=str(error))
                failures, self._current = failures + 1, None
                for probe in probes:
                    probe.wake()
                await asyncio.sleep(_FAILURE_BACKOFF.delay(failures, 0.0))
                continue
            failures = 0
            if found:
                _wake_changed(probes, found)
                if health := [each for each in found if each.type is not EventType.MIG_CHANGE]:
                    self._report(health)
                await asyncio.sleep(_PAUSE_S)

    async def close(self, timeout_s: float) -> bool:
        """Free what `run` has opened, after it was cancelled and no call of a GPU is in progress.

        Returns:
            Whether nothing is open. Otherwise a call hangs, or NVML refuses.
        """
        if self._worker is None:
            return True
        self._interrupt.set()
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            await self._worker.run(_free, self._sets, 0, deadline=deadline)
        except (NvmlError, TimeoutError) as error:
            LOG.warning("The event set cannot be freed", error=str(error) or "no answer")
            return False
        return True

    async def _registered_set(
        self, worker: Worker, nvml: Nvml, probes: Sequence[GpuProbe]
    ) -> EventSet | None:
        """The set with every GPU that works; None if none can be registered.

        Raises:
            NvmlError: A set cannot be created or freed.
        """
        working = {
            handle.uuid: (probe, handle)
            for probe in probes
            if probe.status is Status.WORKING and (handle := probe.state.handle) is not None
        }
        self._failed |= self._registered - working.keys()
        if self._current is None or self._failed & working.keys():
            # Also after a GPU was lost and is back: its registration is not.
            self._current = await worker.run(_create, nvml, self._sets)
            self._registered, self._failed = set(), set()
        events = self._current
        new = {uuid: each for uuid, each in working.items() if uuid not in self._registered}
        async with asyncio.TaskGroup() as group:
            tasks = {
                uuid: group.create_task(_register(*each, events)) for uuid, each in new.items()
            }
        results = {uuid: task.result() for uuid, task in tasks.items()}
        self._registered |= {uuid for uuid, problem in results.items() if problem == ""}
        if len(self._sets) > 1:
            await worker.run(_free, self._sets, 1)
        # What was found of GPUs that have not answered in this session stays until they do.
        known = {uuid: text for uuid, text in self._unmonitored.items() if uuid not in working}
        problems = {uuid: problem for uuid, problem in results.items() if problem}
        self._set_unmonitored({**known, **problems})
        return events if self._registered else None

    def _set_unmonitored(self, found: Mapping[GpuUUID, str]) -> None:
        if found != self._unmonitored:
            self._unmonitored = found
            self._report_unmonitored(found)


def _wake_changed(probes: Sequence[GpuProbe], events: Sequence[Event]) -> None:
    """Query the GPUs whose MIG devices have changed."""
    changed = {event.gpu for event in events if event.type is EventType.MIG_CHANGE}
    for probe in probes:
        if probe.gpu is not None and probe.gpu.uuid in changed:
            probe.wake()


async def _register(probe: GpuProbe, handle: DeviceHandle, events: EventSet) -> str | None:
    """Register a GPU, on its own thread.

    Returns:
        Why it does not report XIDs; empty if it does, and None if it is lost.
    """
    deadline = asyncio.get_running_loop().time() + UNRESPONSIVE_S
    try:
        types = await probe.ask(events.register, handle, _WANTED, deadline=deadline)
    except TimeoutError:
        return "it does not answer"
    except NvmlError as error:
        if error.code == ReturnCode.GPU_IS_LOST:
            probe.wake()
            return None
        return str(error)
    return "" if EventType.XID in types else "it does not report XIDs"


def _do_nothing() -> None:
    pass


def _create(nvml: Nvml, sets: list[EventSet]) -> EventSet:
    sets.append(EventSet(nvml))
    return sets[-1]


def _free(sets: list[EventSet], kept: int) -> None:
    """Free all sets but the last ones."""
    while len(sets) > kept:
        sets[0].free()
        del sets[0]


def _wait(events: EventSet, interrupt: threading.Event) -> Sequence[Event]:
    """Wait until there are events, or for a minute, or until interrupted.

    Raises:
        NvmlError: It cannot be waited, and there is no event.
    """
    until = time.monotonic() + _REGISTER_AGAIN_S
    while not interrupt.is_set() and time.monotonic() < until:
        event = events.wait(_SLICE_MS)
        if event is not None:
            return [event, *_pending(events)]
    return ()


def _pending(events: EventSet) -> Sequence[Event]:
    """What more there is without waiting. An error is left to the next wait."""
    found: list[Event] = []
    try:
        while len(found) < _BATCH and (event := events.wait(0)) is not None:
            found.append(event)
    except NvmlError as error:
        LOG.v(4, "No more events", error=str(error))
    return found
