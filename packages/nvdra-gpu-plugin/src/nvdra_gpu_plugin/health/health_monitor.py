# SPDX-License-Identifier: Apache-2.0
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
from nvdra_runtime.node.nvml_events import Event, EventType
from nvdra_runtime.process import background_tasks, timeouts
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.health import gpu_health, gpu_looks, health_file
from nvdra_gpu_plugin.health.failed_looks import FailedLook, FailedLooks
from nvdra_gpu_plugin.health.gpu_health import WELL, GpuHealth, Look

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two looks, in case an event was missed. One costs a call for each GPU."""

_ATTENTIVE_INTERVAL_S: Final = 1.0
"""The same while a GPU is healing, and after an XID: the driver may change the recovery action
after it has reported the XID."""

_FABRIC_INTERVAL_S: Final = 30.0
"""Between two questions for the NVLink fabric, which cost another call for each GPU."""

_ATTENTIVE_LOOKS: Final = 5

Taints = Mapping[GpuUUID, Sequence[DeviceTaint]]


class HealthMonitor:
    """The health of one node's GPUs.

    Attributes:
        gpus: What is known of each GPU that was not well. It is replaced as a whole.
        unmonitored: Why it is not known how GPUs are: they do not report XIDs, or NVML has not
            answered looks at them for a minute. It is replaced as a whole.
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
        self._failed_looks = FailedLooks()
        self._without_events: Mapping[GpuUUID, str] = {}
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
        self._written = await self._files.run(health_file.GPUS.read, self._plugin_dir, boot_id)
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

    @property
    def actions(self) -> Mapping[GpuUUID, int]:
        """What NVML asks for so that GPUs recover, of those that have a taint for it."""
        return {
            uuid: each.recovery.action
            for uuid, each in self.gpus.items()
            if each.recovery is not None
        }

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
            if uuid not in self._without_events:
                LOG.warning("A GPU cannot report XIDs", uuid=uuid, error=text)
        self._without_events = unmonitored
        self._update_unmonitored()
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
            if not is_released and monitor.session.is_usable.is_set():
                await self._look(monitor.probes)
            else:
                self._failed_looks.note({}, self._clock.monotonic())
            await self._write()  # also what events have said without a look
            await timeouts.wait_for_event(self._woken, self._interval())

    async def _wake_when_changed(self, monitor: DeviceMonitor) -> None:
        serial = 0
        while True:
            serial = await monitor.changed_since(serial)
            self._woken.set()

    def _interval(self) -> float:
        is_healing = any(gpu.is_healing for gpu in self.gpus.values())
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
                uuid: group.create_task(
                    gpu_looks.look_at(probe, self.gpus.get(uuid, WELL), known.get(uuid))
                )
                for probe in probes
                if probe.gpu is not None and probe.state.answered_at is not None
                for uuid in (probe.gpu.uuid,)
            }
        results = {uuid: task.result() for uuid, task in tasks.items()}
        failed = {uuid: each for uuid, each in results.items() if isinstance(each, FailedLook)}
        looks = {uuid: each for uuid, each in results.items() if isinstance(each, Look)}
        self._fabric = {uuid: look.fabric for uuid, look in looks.items() if look.loss is None}
        before, now = self.gpus, self._clock.now()  # events may have come meanwhile
        after = {
            **before,
            **{
                uuid: gpu_health.after_look(before.get(uuid, WELL), look, now, self._ignored_xids)
                for uuid, look in looks.items()
            },
            **{uuid: gpu_health.after_failed_look(before.get(uuid, WELL), now) for uuid in failed},
        }
        self.gpus = {uuid: each for uuid, each in after.items() if each != WELL}
        self._failed_looks.note(failed, self._clock.monotonic())
        has_news = self._update_unmonitored()
        if self.gpus != before:
            await self._write()
        if has_news or self.gpus != before:
            self._notify()

    def _update_unmonitored(self) -> bool:
        """Put together why it is not known how GPUs are, and return whether it has changed."""
        lasting = self._failed_looks.lasting(self._clock.monotonic())
        for uuid, text in lasting.items():
            if uuid not in self.unmonitored:
                LOG.warning("A GPU cannot be looked at", uuid=uuid, error=text)
        before, self.unmonitored = self.unmonitored, {**lasting, **self._without_events}
        return self.unmonitored != before

    async def _write(self) -> None:
        """Write what is known, unless the file has it."""
        gpus = self.gpus
        if gpus == self._written:
            return
        try:
            await self._files.run(health_file.GPUS.write, self._plugin_dir, self._boot_id, gpus)
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
