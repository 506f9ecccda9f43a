# SPDX-License-Identifier: Apache-2.0
"""Changes GPUs, each on its own thread.

A change that has begun runs to its end, whether or not it is waited for: a caller that gives up
does not leave hardware half changed. Callers do give up on a GPU that does not answer, and what the
change does after that is undone by what follows on the GPU's thread.
"""

import asyncio
import contextvars
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import GpuUUID
from nvdra_runtime.claims.records import Change
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError

from nvdra_gpu_plugin.devices.steps import BindVfio
from nvdra_gpu_plugin.hardware import nvml_failures
from nvdra_gpu_plugin.hardware.device_monitor import DeviceMonitor
from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.probe_state import Status

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SESSION_TIMEOUT_S = 5.0
"""How long to wait for NVML while it is being opened again."""


class GpuChanges:
    """The GPUs of one node."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor

    def is_absent(self, change: Change) -> bool:
        """Whether the GPU of a change is certainly not on the node: there is nothing to undo.

        That is so if the driver works, all GPUs have described themselves, and it is none of them.
        Of a GPU that is, or was, on vfio, the PCI bus says it.
        """
        if isinstance(change, BindVfio) or self._is_on_bus(change.place):
            return False
        if self._monitor.state.snapshot is None or not self._monitor.session.is_usable.is_set():
            return False
        states = [probe.state for probe in self._monitor.session.probes]
        return all(
            state.answered_at is not None
            and (not state.is_compute if state.gpu is None else state.gpu.uuid != change.place)
            for state in states
        )

    def _is_on_bus(self, gpu: str) -> bool:
        """Whether a GPU that NVML has described in this boot is on the PCI bus."""
        found = self._monitor.state.passthrough
        on_bus = {board.gpu.pci for board in found.boards}
        return any(known.uuid == gpu and known.pci in on_bus for known in found.remembered)

    async def run(
        self,
        gpu: GpuUUID,
        device: str,
        function: Callable[[Nvml, DeviceHandle, *Ts], T],
        *arguments: *Ts,
    ) -> T:
        """Call `function` on the GPU's thread, and wait until it returns, at most `CHANGE_S`.

        Longer waits belong to who repeats it: while this one lasts, its claim cannot be released,
        nor can any other claim of the GPU.

        Args:
            gpu: The GPU.
            device: The device of a claim, for errors.
            function: It blocks, and raises `DriverError` or `NvmlError`.
            arguments: Its further arguments.

        Raises:
            DriverError: That of the function; `DeviceUnhealthy`, `DriverMismatch`,
                `DeadlineExceeded`: NVML does not answer as it should.
        """
        probe = await self._find_probe(gpu, device)
        context = contextvars.copy_context()  # so that a slow NVML call finds its span
        try:
            result = await probe.change(context.run, _caught, function, arguments)
        except TimeoutError as error:
            fault = probe.fault
            text = probe.silence if fault is None else fault.text
            raise RetryableError(Reason.DEADLINE_EXCEEDED, text, device=device) from error
        if not isinstance(result, Exception):
            return result
        self._monitor.wake()
        if isinstance(result, NvmlError | ValueError):
            raise nvml_failures.explain(device, gpu, result) from result
        raise result

    async def _find_probe(self, gpu: GpuUUID, device: str) -> GpuProbe:
        if not self._monitor.session.is_usable.is_set():
            try:
                async with asyncio.timeout(_SESSION_TIMEOUT_S):
                    await self._monitor.session.is_usable.wait()
            except TimeoutError as error:
                raise RetryableError(
                    Reason.DRIVER_MISMATCH,
                    f"{device} must be changed, and NVML is being opened again",
                    "this continues by itself",
                    device=device,
                ) from error
        for probe in self._monitor.session.probes:
            if probe.gpu is not None and probe.gpu.uuid == gpu:
                return probe
        if any(probe.status is Status.AWAITED for probe in self._monitor.session.probes):
            text = f"{gpu} of {device} has not described itself yet"
            raise RetryableError(Reason.DEADLINE_EXCEEDED, text, device=device)
        raise PermanentError(
            Reason.DEVICE_UNHEALTHY,
            f"{gpu} of {device} is not on the node, or NVML cannot be used",
            "look for Xid messages in the node's kernel log and check that the GPU is plugged in",
            device=device,
        )


def _caught(
    function: Callable[[Nvml, DeviceHandle, *Ts], T],
    arguments: tuple[*Ts],
    nvml: Nvml,
    handle: DeviceHandle,
) -> T | DriverError | NvmlError | ValueError:
    """The result or the error: the caller may be gone."""
    try:
        return function(nvml, handle, *arguments)
    except (DriverError, NvmlError, ValueError) as error:
        return error
