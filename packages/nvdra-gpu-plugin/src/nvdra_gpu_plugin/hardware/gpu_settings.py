# SPDX-License-Identifier: Apache-2.0
"""Settings of GPUs that matter to an administrator who works on them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from nvdra_api.ids import DeviceName
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError

from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe
from nvdra_gpu_plugin.hardware.probe_state import Status

_TIMEOUT_S: Final = 1.0

_T = TypeVar("_T")


async def volatile(probes: Iterable[GpuProbe]) -> Mapping[DeviceName, Sequence[str]]:
    """Settings that are lost when the last session is closed, by device name.

    GPUs that do not answer at once are left out.
    """
    found = await _ask(probes, _volatile_settings)
    return {device: settings for device, settings in found.items() if settings}


async def persistent(probes: Iterable[GpuProbe]) -> Sequence[DeviceName]:
    """The GPUs in persistence mode, which keeps them open.

    GPUs that do not answer at once are left out.
    """
    found = await _ask(probes, lambda nvml, handle: nvml.is_persistent(handle))
    return [device for device, is_persistent in found.items() if is_persistent]


async def _ask(
    probes: Iterable[GpuProbe], question: Callable[[Nvml, DeviceHandle], _T]
) -> Mapping[DeviceName, _T]:
    """The answers of the GPUs that work, each of which is asked on its own thread."""
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    found: dict[DeviceName, _T] = {}
    for probe in probes:
        name = probe.state.name
        if name is None or probe.status is not Status.WORKING:
            continue
        try:
            found[name] = await probe.ask(probe.read, "settings", question, deadline=deadline)
        except (TimeoutError, NvmlError):
            continue
    return found


def _volatile_settings(nvml: Nvml, handle: DeviceHandle) -> Sequence[str]:
    """Settings that the GPU loses when its last client leaves.

    Without persistence mode the driver stops the GPU then, and the next client finds it as it is
    after a boot.
    """
    if nvml.is_persistent(handle) is not False:
        return ()
    found = []
    if mode := nvml.compute_mode(handle):
        found.append(f"compute mode {mode}")
    limits = nvml.power_limits_mw(handle)
    if limits is not None and limits.current != limits.default:
        found.append(f"power limit {limits.current / 1000:g} W")
    return found
