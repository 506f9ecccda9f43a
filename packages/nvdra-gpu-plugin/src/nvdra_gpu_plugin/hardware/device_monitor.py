# SPDX-License-Identifier: Apache-2.0
"""Inspects the node's GPUs again and again, and keeps the result: a `DeviceState`.

It inspects the driver's files, the device nodes, and the answers of one `GpuProbe` per GPU. A
driver that is installed, removed or replaced, a GPU that hangs, disappears or comes back, and a
missing device node are noticed within seconds, without a restart.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from nvdra_api.errors import Reason
from nvdra_cdi.errors import CDIError
from nvdra_cdi.nvidia.options import Options
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import CallObserver
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process import background_tasks, timeouts
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker, WorkerGroup
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.cdi.spec_updater import SpecState, SpecUpdater
from nvdra_gpu_plugin.devices.gpu_numbers import MINORS_ONLY, GpuNumbers
from nvdra_gpu_plugin.devices.inventory import Fault
from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.nvml_sessions import DriverUnavailable, NvmlSessions
from nvdra_gpu_plugin.hardware import device_state
from nvdra_gpu_plugin.hardware.device_state import DeviceState
from nvdra_gpu_plugin.hardware.discovery import Discovery, MadeForClaims
from nvdra_gpu_plugin.hardware.event_watcher import EventWatcher
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.gpu_session import RELEASE_TIMEOUT_S, GpuSession
from nvdra_gpu_plugin.passthrough.vfio_discovery import VfioDiscovery

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 5.0
"""Between two inspections. One is some 200 `lstat` calls, a millisecond. Probes run by
themselves."""


class DeviceMonitor:
    """Keeps `state` up to date while `run` runs.

    Attributes:
        state: The result of the last inspection. It is replaced as a whole.
        serial: Increases with every change of the state.
        session: The NVML session and its probes.
        discovered: Set after the first inspection, whatever its result is.
    """

    def __init__(
        self,
        host: Host,
        spec_updater: SpecUpdater,
        clock: Clock,
        sessions: NvmlSessions,
        files: Worker,
        threads: WorkerGroup,
        discovery: Discovery | None = None,
        events: EventWatcher | None = None,
    ) -> None:
        self.state = DeviceState(node_fault=Fault("", "they have not been inspected yet"))
        self.serial = 0
        self.discovered = asyncio.Event()
        self._discovery = discovery or Discovery(host)
        self.session = GpuSession(self._discovery, clock, sessions, threads, events)
        self._spec_updater = spec_updater
        self._spec_state: SpecState | None = None
        self._clock = clock
        self._files = files
        self._mig_instances: frozenset[str] = frozenset()
        self._changed = asyncio.Condition()

    @property
    def probes(self) -> tuple[GpuProbe, ...]:
        """The GPUs that NVML reports, described or not."""
        return self.session.probes

    @property
    def recent_generations(self) -> Collection[str]:
        """Generations that a claim may just be prepared from, although no record names them yet."""
        state = self._spec_state
        return () if state is None else state.recent_generations(self._clock.monotonic())

    def wake(self) -> None:
        """Inspect the node at once, because a claim has found that something is wrong."""
        self.session.wake()

    async def changed_since(self, serial: int) -> int:
        """Wait until `state` is newer than `serial`, and return its serial number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.serial > serial)
            return self.serial

    @asynccontextmanager
    async def running(self, is_released: bool = False) -> AsyncIterator["DeviceMonitor"]:
        """Inspect the node while the block runs, and close the NVML session at its end."""
        self.session.is_wanted = not is_released
        self.state = replace(self.state, is_released=is_released)
        try:
            async with self.session.tasks, background_tasks.running(device_monitor=self.run):
                yield self
        finally:
            await self.session.close()

    async def run(self) -> None:
        """Inspect the node every few seconds and when woken. Run until cancelled."""
        while True:
            is_wanted = self.session.is_wanted
            if is_wanted:
                await self._set_state(await self._with_vfio(await self._inspect_or_explain()))
            else:
                await self.session.close(RELEASE_TIMEOUT_S)
                # What is known of the GPUs stays as it is.
                known = DeviceState() if self.serial == 0 else self.state
                await self._set_state(replace(known, is_released=True))
            if self.session.is_wanted == is_wanted:
                interval_s = _INTERVAL_S if is_wanted else None
                await timeouts.wait_for_event(self.session.woken, interval_s)
            self.session.woken.clear()

    async def release(self) -> bool:
        """Close the NVML session, and leave the GPUs alone until `resume`.

        Returns:
            Whether everything is closed. Otherwise a call hangs, and what it has open stays so
            until the process ends.
        """
        await self._reach(is_released=True)
        return not (self.session.nvml.has_abandoned or self.session.nvml.is_opening)

    async def resume(self) -> None:
        """Open NVML again, and return when the GPUs have been inspected."""
        await self._reach(is_released=False)

    async def _reach(self, *, is_released: bool) -> None:
        self.session.is_wanted = not is_released
        self.session.woken.set()
        async with self._changed:
            await self._changed.wait_for(lambda: self.state.is_released == is_released)

    async def _inspect_or_explain(self) -> DeviceState:
        """What is on the node, or why the GPUs cannot be used."""
        try:
            state = await self._inspect()
        except DriverUnavailable as error:
            if self.session.is_opening_in_time and self.state.snapshot is not None:
                # Claims wait for the session, and the GPUs stay published.
                return replace(self.state, node_fault=error.fault, is_released=False)
            state = DeviceState(node_fault=error.fault)
        except (OSError, CDIError) as error:
            # A file cannot be read at this moment; what is known stays offered, and each claim
            # proves its own GPU and files.
            text = f"a file of the driver cannot be read: {error}"
            fault = Fault("", text, Reason.DEVICE_NODE_MISSING)
            state = replace(self.state, node_fault=fault, is_released=False)
        self.session.is_usable.set()
        return state

    async def _inspect(self) -> DeviceState:
        """Find out what is on the node.

        Raises:
            DriverUnavailable: There is no driver, or it cannot be used.
        """
        try:
            found = await self._files.run(installation.read, self._discovery.host)
        except FileNotFoundError as error:
            await self.session.close()
            raise DriverUnavailable(Reason.DRIVER_MISMATCH, str(error)) from error
        await self._check_mig_instances()
        if await self.session.open_if_due(found) and self._spec_state is not None:
            self._spec_state = self._spec_state._replace(built_at=-math.inf)  # is generated again
        await self._files.run(self._discovery.numbers.keep)
        known = (probe.gpu for probe in self.probes if probe.gpu is not None)
        gpus = tuple(sorted(known, key=lambda gpu: gpu.pci))
        self._spec_state = await self._files.run(
            self._spec_updater.update, gpus, found.library_id, self._spec_state
        )
        return device_state.derive(self.probes, self._spec_state)

    async def _with_vfio(self, state: DeviceState) -> DeviceState:
        """The state with what the PCI bus says."""
        if self._discovery.vfio is None:
            return state
        described = () if state.snapshot is None else state.snapshot.inventory.gpus
        try:
            found = await self._files.run(self._discovery.vfio.look, described)
        except OSError as error:
            LOG.warning("The PCI bus cannot be read", error=str(error))
            found = self.state.passthrough
        return state.with_passthrough(found, self._spec_updater.options())

    async def _check_mig_instances(self) -> None:
        """Query GPUs at once whose MIG instances were made or destroyed."""
        gpus = [probe.gpu for probe in self.probes if probe.gpu is not None]
        if not any(gpu.is_mig_enabled or gpu.partitions for gpu in gpus):
            return
        found = await self._files.run(installation.mig_instances, self._discovery.host)
        changed = {installation.gpu_of_instance(path) for path in found ^ self._mig_instances}
        self._mig_instances = found
        for probe in self.probes:
            if probe.gpu is not None and probe.gpu.minor in changed:
                probe.wake()

    async def _set_state(self, state: DeviceState) -> None:
        """Replace the state if it differs. An equal snapshot stays the same object."""
        if state.snapshot == self.state.snapshot:
            state = replace(state, snapshot=self.state.snapshot)
        if not self.session.nvml.is_opening and not state.is_released:
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
    made_for_claims: MadeForClaims = lambda _: frozenset(),
    finds_partitions: bool = False,
    numbers: GpuNumbers = MINORS_ONLY,
    hold: SessionHold | None = None,
    vfio: VfioDiscovery | None = None,
) -> AsyncIterator[DeviceMonitor]:
    """Monitor the node while the block runs. Leaving the block closes the NVML session.

    With `is_released`, NVML is not opened before `DeviceMonitor.resume` is called. With `events`,
    events of the GPUs are waited for in every session. MIG devices that are `made_for_claims` are
    no change of the node. With `finds_partitions`, MIG devices can be made for claims
    (`DynamicMIG`). GPUs are named after their `numbers`. `hold` is
    held while NVML is open. `vfio` finds GPUs for virtual machines (`PassthroughSupport`).
    """
    monitor = DeviceMonitor(
        host,
        SpecUpdater(host, options, spec_files, clock),
        clock,
        NvmlSessions(threads.start_worker("nvml"), observe, hold),
        files,
        threads,
        Discovery(host, numbers, made_for_claims, finds_partitions, vfio),
        events,
    )
    async with monitor.running(is_released):
        yield monitor
