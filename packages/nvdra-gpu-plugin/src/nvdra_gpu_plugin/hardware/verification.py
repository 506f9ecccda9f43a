# SPDX-License-Identifier: Apache-2.0
"""Verifies that a GPU works, before a claim is answered.

A GPU is queried on a thread of its own, so that one that hangs delays only its own claims.
"""

import asyncio
import contextvars
from collections.abc import Collection
from typing import Final

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_runtime.node.nvml import NvmlError

from nvdra_gpu_plugin.devices.claim_records import GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.hardware import nvml_failures
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.device_state import Snapshot
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.mig_discovery import DeviceChangedError, InMigModeError
from nvdra_gpu_plugin.hardware.probe_state import Status

_MAKE_AGAIN: Final = "make the same MIG device again (nvidia-smi mig -cgi)"


class MigModeOnError(PermanentError):
    """A whole GPU is in MIG mode, and can leave it.

    Attributes:
        gpu: The GPU.
    """

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(
            Reason.UNKNOWN_DEVICE,
            f"{gpu.name} ({gpu.uuid}) is in MIG mode and cannot be handed out whole",
            "delete the pod so that it is scheduled anew, or turn MIG mode off (nvidia-smi -mig 0)",
            device=gpu.name,
        )
        self.gpu = gpu


class GpuVerifier:
    """Verifies GPUs of claims."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor

    async def verify(
        self, snapshot: Snapshot, devices: Collection[GpuDeviceRecord], deadline: float
    ) -> None:
        """Return only if the GPUs respond and everything that their CDI names refer to exists.

        All are asked side by side. The first failure is raised at once.

        Raises:
            PermanentError: `DeviceUnhealthy`, `DeviceNodeMissing`. `UnknownDevice`: a GPU is in
                MIG mode, as a `MigModeOnError` if it can leave it, or a MIG device was destroyed.
            RetryableError: `DeadlineExceeded`: a GPU hangs. `DriverMismatch`: the driver is gone.
        """
        if len(devices) == 1:  # the usual claim: it needs no task
            (device,) = devices
            await self._verify_one(snapshot, device, deadline)
            return
        failures: tuple[DriverError | ExceptionGroup[DriverError], ...] = ()
        try:
            async with asyncio.TaskGroup() as group:
                for device in devices:
                    group.create_task(self._verify_one(snapshot, device, deadline))
        except* DriverError as errors:
            failures = errors.exceptions
        if failures:
            raise failures[0]

    async def _verify_one(
        self, snapshot: Snapshot, device: GpuDeviceRecord, deadline: float
    ) -> None:
        try:
            if not self._monitor.session.is_usable.is_set():
                async with asyncio.timeout_at(deadline):
                    await self._monitor.session.is_usable.wait()
            probe = self._find_probe(snapshot, device)
            context = contextvars.copy_context()  # so that a slow NVML call finds its span
            error = await probe.ask(
                context.run, _problem, snapshot, probe, device, deadline=deadline
            )
            if error is not None:
                raise error
        except TimeoutError as error:
            self._monitor.wake()
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{device.device} ({device.uuid}) does not answer NVML",
                "other GPUs are not affected; if it lasts, look for Xid messages in the node's "
                "kernel log and reset the GPU",
                device=device.device,
            ) from error
        except DriverError:
            self._monitor.wake()  # the monitor learns at once what this claim has found
            raise

    def _find_probe(self, snapshot: Snapshot, device: GpuDeviceRecord) -> GpuProbe:
        """Find the GPU by its name: its PCI address may have changed since the record was made.

        Raises:
            PermanentError: `DeviceUnhealthy`: the GPU has disappeared.
            RetryableError: `DeadlineExceeded`: it may be one that has not described itself since
                NVML was opened again.
        """
        pci = snapshot.inventory.by_name[device.device].pci
        for probe in self._monitor.session.probes:
            if probe.gpu is not None and probe.gpu.pci == pci:
                return probe
        for probe in self._monitor.session.probes:
            if probe.status is Status.AWAITED:
                raise RetryableError(Reason.DEADLINE_EXCEEDED, probe.silence, device=device.device)
        if any(board.gpu.pci == pci for board in self._monitor.state.passthrough.boards):
            raise RetryableError(
                Reason.DEADLINE_EXCEEDED,
                f"{device.device} ({device.uuid}) comes back from vfio, and NVML does not have it "
                "yet",
                device=device.device,
            )
        raise PermanentError(
            Reason.DEVICE_UNHEALTHY,
            f"{device.device} ({device.uuid}) is no longer on the PCI bus",
            "look for Xid messages in the node's kernel log",
            device=device.device,
        )


def _problem(snapshot: Snapshot, probe: GpuProbe, device: GpuDeviceRecord) -> DriverError | None:
    """Why the GPU cannot be used; None if it can. Called on its own thread.

    The error is returned, because the claim may have failed meanwhile for another GPU.
    """
    missing = snapshot.spec.missing_paths(device.device)
    answer = _answer_of_nvml(snapshot, probe, device)
    if answer is not None and answer.reason is Reason.DRIVER_MISMATCH:
        return answer  # a driver that is not loaded has no device nodes either
    if missing:
        return PermanentError(
            Reason.DEVICE_NODE_MISSING,
            f"{device.device} ({device.uuid}) needs {', '.join(missing)}, which is not on the "
            "node, or is another device now",
            "reload the driver (nvidia-modprobe -c0 -u makes device nodes)",
            device=device.device,
        )
    return answer


def _answer_of_nvml(
    snapshot: Snapshot, probe: GpuProbe, device: GpuDeviceRecord
) -> DriverError | None:
    try:
        probe.verify(snapshot.inventory.by_name[device.device])
    except InMigModeError as error:
        gpu = snapshot.inventory.by_name[device.device]
        if isinstance(gpu, Gpu) and gpu.can_switch_mode:
            if device.is_admin:
                return None  # it works, and who monitors it must not change its mode
            return MigModeOnError(gpu)
        return _changed(device, error)
    except DeviceChangedError as error:
        return _changed(device, error)
    except (NvmlError, ValueError) as error:
        return nvml_failures.explain(device.device, device.uuid, error)
    return None


def _changed(device: GpuDeviceRecord, error: DeviceChangedError) -> PermanentError:
    return PermanentError(
        Reason.UNKNOWN_DEVICE,
        f"{device.device} ({device.uuid}) {error}",
        "delete the pod so that it is scheduled anew, or "
        + (_MAKE_AGAIN if device.kind == "mig" else "turn MIG mode off (nvidia-smi -mig 0)"),
        device=device.device,
    )
