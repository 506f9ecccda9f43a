# SPDX-License-Identifier: Apache-2.0
"""Keeps what is known of the health of GPUs that vfio has: looks at them on the PCI bus.

It needs neither NVML nor a driver. What is known is kept in a file, so that a restart of the plugin
changes no taint, and misses no error that was counted meanwhile.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from nvdra_api.ids import PciAddress, VfioUUID
from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.node.host import Host
from nvdra_runtime.process import timeouts
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices import vfio_devices
from nvdra_gpu_plugin.health import health_file, vfio_health
from nvdra_gpu_plugin.health.vfio_health import VfioHealth
from nvdra_gpu_plugin.passthrough import pci_health
from nvdra_gpu_plugin.passthrough.pci_health import PciLook

LOG = logs.logger(__name__)

_INTERVAL_S: Final = 10.0
"""Between two looks. One reads six small files of sysfs for each GPU, on its own thread."""

_ATTENTIVE_INTERVAL_S: Final = 1.0
"""The same while a fault is to be confirmed or is just over."""

Taints = Mapping[VfioUUID, Sequence[DeviceTaint]]


class VfioMonitor:
    """The health of the GPUs that vfio has, on one node.

    `run` is a background task. Before it, `restore` is called once, with the ID of the boot; it
    needs no GPU to be known. After each notification, `taints` has the new taints for
    `layout.pool`, which gives them to the vfio devices alone (`vfio_taints.joined` adds those of
    busy ones). `explanations.find` has their texts for Events and for `status`, and
    `health_report.vfio_finding` makes of them what the kubelet is told.

    Attributes:
        gpus: What is known of each GPU that vfio has. It is replaced as a whole.
        restored: The taints that an earlier process has found, with their times.
    """

    def __init__(
        self,
        host: Host,
        vfio_gpus: Callable[[], Collection[PciAddress]],
        plugin_dir: Path,
        effect: str,
        looks: Worker,
        files: Worker,
        clock: Clock,
    ) -> None:
        """Create it without any call.

        Args:
            host: The node.
            vfio_gpus: Says which GPUs a vfio driver has now, claimed or not. It is called before
                each look, on the event loop, and must not block. A GPU that it names no more is
                forgotten: its driver, or the next claim of it, says how it is. So it must not leave
                out a claimed GPU that has left the bus.
            plugin_dir: Where it is kept for the next process.
            effect: The effect of taints that keep pods away.
            looks: A worker thread for nothing else, because a read waits for the reset of a GPU, up
                to a minute.
            files: The worker thread for files.
            clock: Says when something was noticed.
        """
        self.gpus: Mapping[PciAddress, VfioHealth] = {}
        self.restored: Taints = {}
        self._host = host
        self._vfio_gpus = vfio_gpus
        self._plugin_dir = plugin_dir
        self._effect = effect
        self._looks = looks
        self._files = files
        self._clock = clock
        self._boot_id = ""
        self._written: Mapping[PciAddress, VfioHealth] = {}
        self._write_errno: int | None = None
        self._errors: Mapping[PciAddress, str] = {}
        self._woken = asyncio.Event()
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever there are other taints."""
        self._on_change.append(notify)

    async def restore(self, boot_id: str) -> None:
        """Go on with what an earlier process of this boot has known."""
        self._boot_id = boot_id
        known = await self._files.run(health_file.VFIO_GPUS.read, self._plugin_dir, boot_id)
        self.gpus = self._written = known
        self.restored = self.taints(knows_none=False)

    def taints(self, knows_none: bool) -> Taints:
        """The taints of each vfio device that has some; `knows_none` as in `vfio_health.taints`."""
        found = {
            vfio_devices.uuid_at(pci): vfio_health.taints(health, knows_none, self._effect)
            for pci, health in self.gpus.items()
        }
        return {uuid: taints for uuid, taints in found.items() if taints}

    def wake(self) -> None:
        """Look at once: other GPUs are on vfio, or one is suspected not to work."""
        self._woken.set()

    async def run(self) -> None:
        """Look at the GPUs, again and again. Run until cancelled."""
        while True:
            self._woken.clear()
            await self.look()
            changes_soon = any(health.changes_soon for health in self.gpus.values())
            interval_s = _ATTENTIVE_INTERVAL_S if changes_soon else _INTERVAL_S
            await timeouts.wait_for_event(self._woken, interval_s)

    async def look(self) -> None:
        """Look at all GPUs once, and notify if that makes a difference."""
        before = self.gpus
        wakeable = {pci: pci in before and before[pci].needs_answer for pci in self._vfio_gpus()}
        looks = await self._looks.run(_read, self._host, wakeable)
        self._note_errors({pci: look.error for pci, look in looks.items() if look.error})
        now, taints = self._clock.now(), self.taints(knows_none=True)
        # One that was not on vfio before, or is no more, was not looked at.
        found = {
            pci: before.get(pci)
            if look.error
            else vfio_health.after_look(before.get(pci), look, now)
            for pci, look in looks.items()
        }
        self.gpus = {pci: health for pci, health in found.items() if health is not None}
        await self._write()
        if self.taints(knows_none=True) != taints:
            for notify in self._on_change:
                notify()

    def _note_errors(self, errors: Mapping[PciAddress, str]) -> None:
        for pci, error in errors.items():
            if self._errors.get(pci) != error:
                LOG.warning("A GPU on vfio cannot be looked at", pci=pci, error=error)
        self._errors = errors

    async def _write(self) -> None:
        """Write what is known, unless the file has it."""
        gpus = self.gpus
        if gpus == self._written:
            return
        try:
            await self._files.run(
                health_file.VFIO_GPUS.write, self._plugin_dir, self._boot_id, gpus
            )
        except OSError as error:
            # It is tried again after each look. The text names a temporary file, the number none.
            if error.errno != self._write_errno:
                LOG.warning("The health of GPUs on vfio cannot be written", error=str(error))
            self._write_errno = error.errno
        else:
            self._written, self._write_errno = gpus, None


def _read(host: Host, wakeable: Mapping[PciAddress, bool]) -> Mapping[PciAddress, PciLook]:
    """Look at these GPUs, waking those that may be woken."""
    return {
        pci: pci_health.read(host, pci, may_wake=may_wake) for pci, may_wake in wakeable.items()
    }
