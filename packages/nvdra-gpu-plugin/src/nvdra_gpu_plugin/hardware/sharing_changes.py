# SPDX-License-Identifier: Apache-2.0
"""Changes how a GPU divides its time among processes.

A setting is written only if it is another one, because nvidia-smi takes time and the driver logs
every change. All functions block: they run on the thread of the GPU, while its lock is held.
Source: docs/reference/gpu-prepare.md, "Time-slicing".
"""

from typing import Final

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import DeviceName
from nvdra_api.v1beta1.sharing import Interval
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import DeviceHandle, Nvml
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.steps import GpuSharing, SetComputeMode, ShareByTime
from nvdra_gpu_plugin.driver import nvidia_smi
from nvdra_gpu_plugin.driver.nvidia_smi import SmiError

LOG = logs.logger(__name__)

_DEFAULT: Final = "Default"
"""The time slice that a GPU starts with."""

_SHARED: Final = 0
"""`NVML_COMPUTEMODE_DEFAULT`: several processes may use the GPU."""


def current(nvml: Nvml, gpu: DeviceHandle, host: Host) -> GpuSharing:
    """How the GPU is shared now.

    Raises:
        NvmlError: The GPU does not answer.
    """
    return GpuSharing(
        interval=nvidia_smi.time_slice(host, gpu.uuid), compute_mode=nvml.compute_mode(gpu)
    )


def share(nvml: Nvml, gpu: DeviceHandle, host: Host, step: ShareByTime) -> None:
    """Let several processes take turns on the GPU. One without time slices has the default.

    Raises:
        PermanentError: `DeviceUnhealthy`: the time slice cannot be set.
        NvmlError: The compute mode cannot be set.
    """
    wanted = GpuSharing(interval=step.interval, compute_mode=_SHARED)
    _apply(nvml, gpu, host, step.device, wanted, may_lack_slices=step.interval == _DEFAULT)


def restore(nvml: Nvml, gpu: DeviceHandle, host: Host, step: ShareByTime) -> None:
    """Share the GPU as before the step. What is not known is as the driver starts with it.

    A time slice that was not known and cannot be set was not set by the step either: P4 and other
    boards have none (kubernetes-sigs/dra-driver-nvidia-gpu#41).

    Raises:
        PermanentError: `DeviceUnhealthy`: the time slice cannot be set.
        NvmlError: The compute mode cannot be set.
    """
    former = step.former or GpuSharing(interval=None, compute_mode=_SHARED)
    _apply(nvml, gpu, host, step.device, former, may_lack_slices=former.interval is None)


def is_shared(nvml: Nvml, gpu: DeviceHandle, host: Host, step: ShareByTime) -> bool:
    """Whether the step is done, as far as the driver says.

    Raises:
        NvmlError: The GPU does not answer.
    """
    now = current(nvml, gpu, host)
    return now.compute_mode == _SHARED and now.interval in (None, step.interval)


def compute_mode(nvml: Nvml, gpu: DeviceHandle) -> int:
    """The GPU's compute mode.

    Raises:
        NvmlError: The GPU does not answer.
    """
    return nvml.compute_mode(gpu)


def set_compute_mode(nvml: Nvml, gpu: DeviceHandle, step: SetComputeMode) -> None:
    """Set the compute mode of the step.

    Raises:
        NvmlError: It cannot be set.
    """
    _set_mode(nvml, gpu, step.mode)


def restore_compute_mode(nvml: Nvml, gpu: DeviceHandle, step: SetComputeMode) -> None:
    """Set the compute mode that was before the step; what is not known, as the driver starts with.

    Raises:
        NvmlError: It cannot be set.
    """
    _set_mode(nvml, gpu, _SHARED if step.former is None else step.former)


def has_compute_mode(nvml: Nvml, gpu: DeviceHandle, step: SetComputeMode) -> bool:
    """Whether the step is done.

    Raises:
        NvmlError: The GPU does not answer.
    """
    return nvml.compute_mode(gpu) == step.mode


def _set_mode(nvml: Nvml, gpu: DeviceHandle, mode: int) -> None:
    if nvml.compute_mode(gpu) != mode:
        nvml.set_compute_mode(gpu, mode)


def _apply(
    nvml: Nvml,
    gpu: DeviceHandle,
    host: Host,
    device: DeviceName,
    wanted: GpuSharing,
    *,
    may_lack_slices: bool,
) -> None:
    now = current(nvml, gpu, host)
    if now.compute_mode != wanted.compute_mode:
        nvml.set_compute_mode(gpu, wanted.compute_mode)
    interval: Interval = wanted.interval or _DEFAULT
    if now.interval == interval:
        return
    try:
        nvidia_smi.set_time_slice(host, gpu.uuid, interval)
    except SmiError as error:
        if now.interval is None and may_lack_slices:
            LOG.v(2, "A GPU says no time slice and takes none", gpu=gpu.uuid, error=str(error))
            return
        raise PermanentError(
            Reason.DEVICE_UNHEALTHY,
            f"the time slice of {device} ({gpu.uuid}) cannot be set to {interval}: {error}",
            "remove timeSlicingConfig from the claim, if the GPU has no time slices; otherwise "
            "check that the driver's nvidia-smi works on the node",
            device=device,
        ) from error
