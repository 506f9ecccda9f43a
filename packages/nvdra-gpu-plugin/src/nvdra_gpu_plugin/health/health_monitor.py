"""Keeps what is known of the GPUs' health: listens to their events and looks at them.

The result are the taints of each GPU. They are kept in a file, so that they survive a restart.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from nvdra_api.ids import GpuUUID
from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.node.nvml import FabricInfo, NvmlError, ReturnCode
from nvdra_runtime.node.nvml_events import Event, EventType
from nvdra_runtime.node.nvml_fields import Field
from nvdra_runtime.process import background_tasks, timeouts
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.health import gpu_health, health_file
from nvdra_gpu_plugin.health.gpu_health import (
    DEGRADED_BANDWIDTH,
    FABRIC_FAILED,
    REMAPPING_FAILED,
    REMAPPING_PENDING,
    ROUTE_UNHEALTHY,
    WELL,
    GpuHealth,
    Look,
)

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two looks, in case an event was missed. One costs a call for each GPU."""

_ATTENTIVE_INTERVAL_S: Final = 1.0
"""The same while a GPU is healing, and after an XID: the driver may change the recovery action
after it has reported the XID."""

_FABRIC_INTERVAL_S: Final = 30.0
"""Between two questions for the NVLink fabric, which cost another call for each GPU."""

_ATTENTIVE_LOOKS: Final = 5
_LOOK_TIMEOUT_S: Final = 5.0

Taints = Mapping[GpuUUID, Sequence[DeviceTaint]]


class HealthMonitor:
    """The health of one node's GPUs.

    Attributes:
        gpus: What is known of each GPU that was not well. It is replaced as a whole.
        unmonitored: Why GPUs that work do not report XIDs.
        restored: The taints that an earlier process has found, with their times.
    """

    def __init__(
        self,
        plugin_dir: Path,
        ignored_xids: frozenset[int],
        effect: str,
        files: Worker,
        clock: Clock,
    ) -> None:
        """Create it without any call.

        Args:
            plugin_dir: Where it is kept for the next process.
            ignored_xids: XIDs that an administrator ignores.
            effect: The effect of taints that keep pods away.
            files: The worker thread for files.
            clock: Says when something was noticed.
        """
        self.gpus: Mapping[GpuUUID, GpuHealth] = {}
        self.unmonitored: Mapping[GpuUUID, str] = {}
        self.restored: Taints = {}
        self._plugin_dir = plugin_dir
        self._ignored_xids = ignored_xids
        self._effect = effect
        self._files = files
        self._clock = clock
        self._boot_id = ""
        self._written: Mapping[GpuUUID, GpuHealth] = {}
        self._write_error = ""
        self._was_released = False
        self._attentive_looks = 0
        self._fabric: Mapping[GpuUUID, str] = {}
        self._fabric_due_at = 0.0
        self._woken = asyncio.Event()
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever the health has changed."""
        self._on_change.append(notify)

    async def restore(self, boot_id: str) -> None:
        """Go on with what an earlier process of this boot has known."""
        self._boot_id = boot_id
        self._written = await self._files.run(health_file.read, self._plugin_dir, boot_id)
        known = {
            uuid: gpu_health.with_ignored(each, self._ignored_xids)
            for uuid, each in self._written.items()
        }
        self.gpus = {uuid: each for uuid, each in known.items() if each != WELL}
        self.restored = self.taints(knows_none=False)

    def taints(self, knows_none: bool) -> Taints:
        """The taints of each GPU that has some; `knows_none` as in `gpu_health.taints`."""
        uuids = {**self.gpus, **self.unmonitored}
        found = {
            uuid: gpu_health.taints(
                self.gpus.get(uuid, WELL), uuid not in self.unmonitored, knows_none, self._effect
            )
            for uuid in uuids
        }
        return {uuid: taints for uuid, taints in found.items() if taints}

    def report(self, events: Sequence[Event]) -> None:
        """Take note of events, and look at the GPUs at once if they may be grave."""
        now, gpus = self._clock.now(), dict(self.gpus)
        for event in events:
            LOG.v(
                2,
                "A GPU reports",
                uuid=event.gpu,
                type=event.type.name,
                xid=event.xid,
                gpu_instance=event.gpu_instance,
            )
            if event.type is EventType.XID and event.gpu is not None:
                before = gpus.get(event.gpu, WELL)
                gpus[event.gpu] = gpu_health.after_xid(before, event.xid, now, self._ignored_xids)
        self.gpus = gpus
        if any(map(_may_be_grave, events)):
            self._attentive_looks = _ATTENTIVE_LOOKS
            self._woken.set()

    def report_unmonitored(self, unmonitored: Mapping[GpuUUID, str]) -> None:
        """Take note of GPUs that do not report XIDs."""
        for uuid, text in unmonitored.items():
            if uuid not in self.unmonitored:
                LOG.warning("A GPU cannot report XIDs", uuid=uuid, error=text)
        self.unmonitored = unmonitored
        self._notify()

    async def run(self, monitor: DeviceMonitor) -> None:
        """Look at the GPUs, again and again. Run until cancelled."""
        await background_tasks.run_all(
            health=partial(self._look_repeatedly, monitor),
            health_wake_ups=partial(self._wake_when_changed, monitor),
        )

    async def _look_repeatedly(self, monitor: DeviceMonitor) -> None:
        while True:
            self._woken.clear()
            is_released = monitor.state.is_released
            if self._was_released and not is_released:
                self._forget_causes()
            self._was_released = is_released
            if not is_released and monitor.is_usable.is_set():
                await self._look(monitor.probes)
            await self._write()  # also what events have said while nobody looks
            await timeouts.wait_for_event(self._woken, self._interval())

    async def _wake_when_changed(self, monitor: DeviceMonitor) -> None:
        serial = 0
        while True:
            serial = await monitor.changed_since(serial)
            self._woken.set()

    def _interval(self) -> float:
        is_healing = any(each.is_healing for each in self.gpus.values())
        if not is_healing and not self._attentive_looks:
            return _INTERVAL_S
        self._attentive_looks = max(0, self._attentive_looks - 1)
        return _ATTENTIVE_INTERVAL_S

    def _forget_causes(self) -> None:
        """An administrator had the GPUs."""
        self.gpus = {
            uuid: gpu_health.after_administration(each) for uuid, each in self.gpus.items()
        }

    async def _look(self, probes: Sequence[GpuProbe]) -> None:
        """Look at all GPUs side by side, so that one that hangs delays no other."""
        known = self._fabric
        if self._clock.monotonic() >= self._fabric_due_at:
            self._fabric_due_at = self._clock.monotonic() + _FABRIC_INTERVAL_S
            known = {}
        async with asyncio.TaskGroup() as group:
            tasks = {
                probe.gpu.uuid: group.create_task(_look_at(probe, known.get(probe.gpu.uuid)))
                for probe in probes
                if probe.gpu is not None and probe.has_answered
            }
        looks = {uuid: look for uuid, task in tasks.items() if (look := task.result()) is not None}
        self._fabric = {uuid: look.fabric for uuid, look in looks.items() if not look.is_lost}
        before, now = self.gpus, self._clock.now()  # events may have come meanwhile
        after = {
            **before,
            **{
                uuid: gpu_health.after_look(before.get(uuid, WELL), look, now, self._ignored_xids)
                for uuid, look in looks.items()
            },
        }
        self.gpus = {uuid: each for uuid, each in after.items() if each != WELL}
        if self.gpus != before:
            await self._write()
            self._notify()

    async def _write(self) -> None:
        """Write what is known, unless the file has it."""
        gpus = self.gpus
        if gpus == self._written:
            return
        try:
            await self._files.run(health_file.write, self._plugin_dir, self._boot_id, gpus)
        except OSError as error:
            if str(error) != self._write_error:  # it is tried again after each look
                LOG.warning("The health of GPUs cannot be written", error=str(error))
            self._write_error = str(error)
        else:
            self._written, self._write_error = gpus, ""

    def _notify(self) -> None:
        for notify in self._on_change:
            notify()


def _may_be_grave(event: Event) -> bool:
    if event.type is EventType.XID:
        return event.xid not in gpu_health.APPLICATION_XIDS
    return event.type is not EventType.SINGLE_BIT_ECC_ERROR


def _fabric(info: FabricInfo | None) -> str:
    """What is wrong with a fabric; empty for nothing. It may still be coming up."""
    if info is None:
        return ""
    if info.is_failed:
        return FABRIC_FAILED
    if info.is_route_unhealthy:
        return ROUTE_UNHEALTHY
    return DEGRADED_BANDWIDTH if info.is_bandwidth_degraded else ""


def _look(values: Mapping[Field, int], fabric: str) -> Look:
    is_failed, is_pending = (
        bool(values.get(field)) for field in (Field.REMAPPING_FAILED, Field.REMAPPING_PENDING)
    )
    return Look(
        recovery_action=values.get(Field.RECOVERY_ACTION),
        has_uncorrected_errors=bool(values.get(Field.UNCORRECTED_ERRORS)),
        fabric=fabric,
        remapping=REMAPPING_FAILED if is_failed else REMAPPING_PENDING if is_pending else "",
    )


async def _ask_fabric(probe: GpuProbe, deadline: float) -> str:
    """What is wrong with a GPU's fabric. One that cannot be asked for is no reason for a taint.

    Raises:
        NvmlError: The GPU is lost.
        TimeoutError: It does not answer.
    """
    try:
        return _fabric(await probe.ask(probe.fabric_info, deadline=deadline))
    except NvmlError as error:
        if error.code == ReturnCode.GPU_IS_LOST:
            raise
        LOG.v(4, "The fabric of a GPU is not known", error=str(error))
        return ""


async def _look_at(probe: GpuProbe, fabric: str | None) -> Look | None:
    """How a GPU is now; None if it does not say.

    `fabric` is what is known of its fabric; None to ask.
    """
    if probe.is_lost:
        return Look(is_lost=True)
    deadline = asyncio.get_running_loop().time() + _LOOK_TIMEOUT_S
    with background_tasks.contain("A GPU cannot be looked at"):
        try:
            if fabric is None:
                fabric = await _ask_fabric(probe, deadline)
            return _look(await probe.ask(probe.field_values, deadline=deadline), fabric)
        except NvmlError as error:
            if error.code != ReturnCode.GPU_IS_LOST:
                return None
            probe.wake()
            return Look(is_lost=True)
        except TimeoutError:
            return None
    return None
