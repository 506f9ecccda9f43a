# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the node, as `DeviceMonitor` last saw them; waits for those not described yet."""

import asyncio
from collections.abc import Collection

from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import DeviceName, DeviceUUID, PciAddress

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.devices.steps import MakeMigDevice
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import DeviceState, Snapshot
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.probe_state import Status


class NodeGpus:
    """The GPUs of the node."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor

    @property
    def state(self) -> DeviceState:
        """All that is known of the node's GPUs."""
        return self._monitor.state

    @property
    def snapshot(self) -> Snapshot | None:
        """The usable GPUs and their CDI spec; None while no GPU can be used."""
        return self._monitor.state.snapshot

    def usable(self, where: str, devices: Collection[str] = ()) -> Snapshot:
        """The usable GPUs and their CDI spec.

        Args:
            where: The node, for the error.
            devices: What is needed of them. A vfio device needs no driver of NVIDIA.

        Raises:
            RetryableError: `DriverMismatch`: no GPU can be used.
        """
        found = self.snapshot
        needs_driver = not all(map(device_names.is_vfio_name, devices))
        is_missing = self.state.node_fault is not None and needs_driver
        if found is None or (is_missing and not found.has_driver):
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                f"the GPUs of {where} cannot be used: {self.problem}",
                "install or repair the NVIDIA driver; the plugin continues as soon as it works",
            )
        return found

    @property
    def problem(self) -> str:
        """What is wrong with the node as a whole; empty if nothing is."""
        fault = self._monitor.state.node_fault
        return "" if fault is None else fault.text

    @property
    def partitions_problem(self) -> str:
        """Why no MIG devices can be made on some GPUs now; empty if there is no problem."""
        gpus: dict[str, list[str]] = {}
        for probe in self._monitor.session.probes:
            if problem := probe.state.partitions_problem:
                gpus.setdefault(problem, []).append(str(probe.state.name))
        return "; ".join(
            f"no MIG devices can be made on {', '.join(names)} now, and none are offered: {problem}"
            for problem, names in gpus.items()
        )

    @property
    def is_empty(self) -> bool:
        """Whether the driver works and there is no GPU."""
        return self._monitor.state.is_empty

    @property
    def is_discovered(self) -> bool:
        """Whether the node has been inspected at least once."""
        return self._monitor.discovered.is_set()

    @property
    def is_complete(self) -> bool:
        """Whether the snapshot has every GPU of the node, so that any other name is unknown."""
        if self.snapshot is None:
            return False
        return len(self.snapshot.inventory.gpus) >= self.count

    @property
    def count(self) -> int:
        """How many GPUs that can compute NVML reports."""
        return sum(probe.state.is_compute for probe in self._monitor.session.probes)

    @property
    def recent_generations(self) -> Collection[str]:
        """Generations that a claim may just be prepared from, although no record names them yet."""
        return self._monitor.recent_generations

    def has_lost(self, step: MakeMigDevice) -> bool:
        """Whether a MIG device that was made for a claim was not there at the last look.

        Ask the GPU itself whether it is so: the claim may just have been prepared.
        """
        if step.made is None:
            return False
        place, uuid = (step.profile_id, step.start), step.made.uuid
        return any(
            probe.state.has_lost(place, uuid)
            for probe in self._monitor.session.probes
            if probe.gpu is not None and probe.gpu.uuid == step.gpu
        )

    @property
    def serial(self) -> int:
        """Increases with every change of `state`."""
        return self._monitor.serial

    async def changed_since(self, serial: int) -> int:
        """Wait until `state` is newer than `serial`, and return its serial number."""
        return await self._monitor.changed_since(serial)

    def away(self, names: Collection[str]) -> list[Gpu]:
        """The GPUs of these devices that are on vfio, or come back from it."""
        wanted = {device_names.parent_name(DeviceName(name)) for name in names}
        remembered = (gpu for gpu in self.state.passthrough.remembered if gpu.name in wanted)
        known = {} if self.snapshot is None else self.snapshot.inventory.by_uuid
        return [gpu for gpu in remembered if gpu.uuid not in known]

    def is_prebound(self, pci: PciAddress) -> bool:
        """Whether a vfio driver had the GPU at the last look, and no claim."""
        candidates = self.state.passthrough.candidates
        return any(each.is_prebound for each in candidates if each.device.pci == pci)

    async def wait_discovered(self, deadline: float) -> None:
        """Wait until the node has been inspected once.

        Raises:
            RetryableError: `DeadlineExceeded`: NVML hangs.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._monitor.discovered.wait()
        except TimeoutError as error:
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                "NVML has not described this node's GPUs since the plugin started",
                "if it lasts, look for Xid messages in the node's kernel log; nvidia-smi on the "
                "node hangs too",
            ) from error

    async def wait_described(self, names: Collection[str], deadline: float) -> bool:
        """Wait for GPUs that have not been described yet and may be one of these devices.

        Returns:
            Whether it had to wait.

        Raises:
            PermanentError: `DeviceUnhealthy`, `DeviceNodeMissing`: one of them cannot be used.
            RetryableError: `DeadlineExceeded`: a GPU hangs. If this is known, it is not waited for.
        """
        has_waited = False
        while (probe := self._undescribed_probe(names)) is not None:
            has_waited = True
            await self._wait_described(probe, deadline)
        return has_waited

    async def wait_uuids(self, uuids: Collection[DeviceUUID], deadline: float) -> None:
        """Wait for these GPUs as long as some have not been described yet, under any name.

        Raises:
            RetryableError: `DeadlineExceeded`: a GPU hangs that may be one of them.
        """
        while (snapshot := self.snapshot) is not None:
            if all(uuid in snapshot.inventory.by_uuid for uuid in uuids):
                return
            probes = (probe for probe in self._monitor.session.probes if probe.state.is_compute)
            silent = next((probe for probe in probes if probe.state.answered_at is None), None)
            if silent is None:
                return
            await self._wait_described(silent, deadline)

    async def _wait_described(self, probe: GpuProbe, deadline: float) -> None:
        """Wait for a change, unless this GPU is known not to answer.

        Raises:
            RetryableError: `DeadlineExceeded`: this GPU hangs.
        """
        if probe.status is Status.OVERDUE:
            raise RetryableError(Reason.DEADLINE_EXCEEDED, probe.silence)
        try:
            async with asyncio.timeout_at(deadline):
                await self.changed_since(self._monitor.serial)
        except TimeoutError as error:
            raise RetryableError(Reason.DEADLINE_EXCEEDED, probe.silence) from error

    def _undescribed_probe(self, names: Collection[str]) -> GpuProbe | None:
        """A GPU that may be one of these devices and has not been described yet.

        Raises:
            PermanentError: One of these devices cannot be used.
        """
        if self.snapshot is None:
            return None  # no GPU can be used, so there is nothing to wait for
        gpus = {device_names.parent_name(DeviceName(name)) for name in names}
        unknown = gpus - self.snapshot.inventory.by_name.keys()
        faults = {fault.device: fault for fault in self.state.faults}
        for probe in self._monitor.session.probes:
            name, has_answered = probe.state.name, probe.state.answered_at is not None
            if not unknown or not probe.state.is_compute:
                continue
            if name in unknown and has_answered and name in faults:
                fault = faults[name]
                raise PermanentError(fault.reason, fault.text, device=fault.device)
            if name in unknown or (name is None and not has_answered):
                return probe
        return None
