# SPDX-License-Identifier: Apache-2.0
"""The health of the node's devices, for the kubelet, which shows it in the status of pods.

It follows from the taints of GPUs, whether or not the API server keeps them, and from faults.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from nvdra_api.ids import DeviceName, GpuUUID, NodeName, PoolName
from nvdra_api.resource.slices import DeviceTaint
from nvdra_runtime.kubeletplugin.device_health import DeviceHealth, HealthStatus
from nvdra_runtime.process.clock import Clock

from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.hardware.device_state import DeviceState
from nvdra_gpu_plugin.hardware.node_gpus import NodeGpus
from nvdra_gpu_plugin.health import explanations
from nvdra_gpu_plugin.health.health_monitor import HealthMonitor
from nvdra_gpu_plugin.health.recovery_actions import RecoveryAction

_RELEASED: Final = "NVML is released on this node for maintenance, so nobody looks at it"


class Finding(NamedTuple):
    """What is known of a device.

    Attributes:
        status: Its health.
        message: Why it is not healthy.
        since: Since when, if that is known.
    """

    status: HealthStatus
    message: str = ""
    since: datetime | None = None


class HealthReport:
    """What the kubelet gets.

    Attributes:
        devices: The health of all devices, and of the MIG devices that can be made for claims,
            whether or not they are: the kubelet asks by device name, and knows nothing of a device
            that it has not been told of. None before GPUs were found. It is replaced as a whole.
    """

    def __init__(self, node: NodeName, gpus: NodeGpus, health: HealthMonitor, clock: Clock) -> None:
        """Create it without any call.

        Args:
            node: This node, which is the pool.
            gpus: The node's GPUs.
            health: What is known of their health.
            clock: Says since when a device is as it is.
        """
        self.devices: Sequence[DeviceHealth] | None = None
        self._pool = PoolName(node)
        self._gpus = gpus
        self._health = health
        self._clock = clock
        self._inventory: Inventory | None = None
        self._on_change: list[Callable[[], None]] = []
        health.on_change(self._update)

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever `devices` has changed."""
        self._on_change.append(notify)

    async def run(self) -> None:
        """Follow what is known of the node's GPUs. Run until cancelled."""
        serial = 0
        while True:
            serial = await self._gpus.changed_since(serial)
            self._update()

    def _update(self) -> None:
        state = self._gpus.state
        if state.snapshot is not None:
            self._inventory = state.snapshot.inventory
        if self._inventory is None:
            return
        taints, unmonitored = self._health.taints(knows_none=False), self._health.unmonitored
        actions = self._health.actions
        known = {device.device: device for device in self.devices or ()}
        found = tuple(
            self._dated(
                name,
                finding(
                    name,
                    gpu,
                    state,
                    taints.get(gpu.uuid, ()),
                    unmonitored,
                    actions.get(gpu.uuid, RecoveryAction.NONE),
                ),
                known.get(name),
            )
            for gpu in self._inventory.gpus
            for name in device_names(gpu)
        )
        if found != self.devices:
            self.devices = found
            for notify in self._on_change:
                notify()

    def _dated(self, name: DeviceName, found: Finding, known: DeviceHealth | None) -> DeviceHealth:
        """The health of a device, with the time since when it is so."""
        if known is not None and (known.status, known.message) == (found.status, found.message):
            return known
        since = found.since or self._clock.now()
        return DeviceHealth(self._pool, name, found.status, since, found.message)


def device_names(gpu: Gpu) -> Sequence[DeviceName]:
    """The devices that pods may have of a GPU, each once.

    An administrator's MIG device has the name of the partition in whose place it is.
    """
    return tuple(dict.fromkeys(device.name for device in (*gpu.devices, *gpu.partitions)))


def finding(
    device: DeviceName,
    gpu: Gpu,
    state: DeviceState,
    taints: Sequence[DeviceTaint],
    unmonitored: Mapping[GpuUUID, str],
    action: int = RecoveryAction.NONE,
) -> Finding:
    """What is known of a device.

    Args:
        device: The name of a GPU, or of a MIG device of one, also of one that can be made.
        gpu: The GPU.
        state: What is known of the node's GPUs.
        taints: The taints of the GPU that keep pods away.
        unmonitored: Why it is not known how GPUs that work are.
        action: What NVML asks for so that the GPU recovers.
    """
    unhealthy = _unhealthy(gpu.name, taints, action)
    if unhealthy is not None:
        return unhealthy
    if state.is_released:
        return Finding(HealthStatus.UNKNOWN, _RELEASED)
    if state.snapshot is None:
        text = "" if state.node_fault is None else state.node_fault.text
        return Finding(HealthStatus.UNKNOWN, f"the node's GPUs cannot be used: {text}")
    for fault in state.faults:
        if fault.device in (device, gpu.name):
            return Finding(HealthStatus.UNHEALTHY, fault.text)
    if gpu.uuid in unmonitored:
        return Finding(HealthStatus.UNKNOWN, f"{gpu.name}: {unmonitored[gpu.uuid]}")
    return Finding(HealthStatus.HEALTHY)


def vfio_finding(device: DeviceName, taints: Sequence[DeviceTaint]) -> Finding:
    """What is known of a vfio device whose GPU a vfio driver has.

    Neither NVML nor the state of the node's other GPUs matters.

    Args:
        device: Its name.
        taints: Its own taints, from `VfioMonitor`.
    """
    return _unhealthy(device, taints) or Finding(HealthStatus.HEALTHY)


def _unhealthy(
    name: str, taints: Sequence[DeviceTaint], action: int = RecoveryAction.NONE
) -> Finding | None:
    """What taints that keep pods away say; None without one."""
    found = [
        (taint, explanation)
        for taint in taints
        if (explanation := explanations.find(taint, action)) is not None
    ]
    if not found:
        return None
    text = "; ".join(f"{name} {explanation.of(taint)}" for taint, explanation in found)
    times = (taint.time_added for taint, _ in found if taint.time_added is not None)
    return Finding(HealthStatus.UNHEALTHY, text, min(times, default=None))
