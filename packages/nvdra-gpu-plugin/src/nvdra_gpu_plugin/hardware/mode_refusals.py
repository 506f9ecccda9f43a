# SPDX-License-Identifier: Apache-2.0
"""GPUs whose MIG mode could not be switched when a claim needed it.

NVML says only when it is asked to switch whether it can: another program, such as DCGM, may keep
the GPU. After a refusal, what would need the other mode is not offered for a while, so that pods
are scheduled elsewhere. Claims that have it already go on trying, and so renew the refusal.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import DeviceName, GpuUUID, NodeName
from nvdra_runtime.kube.event_recorder import EventRecorder, node_reference
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices import device_names

LOG = logs.logger(__name__)

_LASTS_S: Final = 300.0
"""Longer than the kubelet's pause between two attempts, which is two minutes at most."""

REFUSALS: Final = (Reason.DEVICE_IN_USE, Reason.MIG_MODE_REQUIRES_RESET)


@dataclass(frozen=True, slots=True)
class _Refusal:
    wanted: bool
    text: str
    timer: asyncio.TimerHandle


class ModeRefusals:
    """The GPUs of one node. They are forgotten when the process ends."""

    def __init__(self, node: NodeName, events: EventRecorder) -> None:
        self._node = node
        self._events = events
        self._found: dict[GpuUUID, _Refusal] = {}
        self._callbacks: list[Callable[[], None]] = []

    @property
    def kept_modes(self) -> Mapping[GpuUUID, bool]:
        """The GPUs that cannot be switched, and whether they are in MIG mode."""
        return {gpu: not each.wanted for gpu, each in self._found.items()}

    @property
    def remark(self) -> str:
        """What is not offered and why, for `/readyz`; empty if everything is."""
        return "; ".join(each.text for each in self._found.values())

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call it on the event loop whenever `kept_modes` has changed."""
        self._callbacks.append(callback)

    def note_refused(
        self, gpu: GpuUUID, device: DeviceName, error: DriverError, *, is_on: bool
    ) -> None:
        """Take note of an attempt that has failed to switch MIG mode on or off for a device."""
        if error.reason not in REFUSALS:
            return
        timer = asyncio.get_running_loop().call_later(_LASTS_S, self._forget, gpu)
        former = self._found.get(gpu)
        text = (
            f"{device_names.parent_name(device)} offers nothing that needs its MIG mode switched, "
            f"for {_LASTS_S / 60:.0f} minutes after each attempt that fails: {error.event_text}"
        )
        self._found[gpu] = _Refusal(is_on, text, timer)
        if former is not None:
            former.timer.cancel()
            if former.wanted == is_on:
                return
        LOG.warning("A GPU keeps its MIG mode", gpu=gpu, error=str(error))
        self._events.emit((node_reference(self._node),), "Warning", error.reason, text)
        self._call_back()

    def note_mode(self, gpu: GpuUUID, *, is_on: bool) -> None:
        """Take note that MIG mode is on or off, as a device needs it."""
        found = self._found.get(gpu)
        if found is not None and found.wanted == is_on:
            self._forget(gpu)

    def _forget(self, gpu: GpuUUID) -> None:
        former = self._found.pop(gpu, None)
        if former is not None:
            former.timer.cancel()
            LOG.info("The MIG mode of a GPU may be switched again", gpu=gpu)
            self._call_back()

    def _call_back(self) -> None:
        for callback in self._callbacks:
            callback()
