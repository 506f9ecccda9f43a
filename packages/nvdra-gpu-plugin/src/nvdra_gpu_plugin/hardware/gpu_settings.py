# SPDX-License-Identifier: Apache-2.0
"""Settings of GPUs that matter to whoever works on them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from nvdra_api.ids import DeviceName
from nvdra_runtime.node.nvml import NvmlError

from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe

_TIMEOUT_S: Final = 1.0

_T = TypeVar("_T")


async def volatile(probes: Iterable[GpuProbe]) -> Mapping[DeviceName, Sequence[str]]:
    """Settings that are lost when the last session is closed, by device name.

    GPUs that do not answer at once are left out.
    """
    found = await _ask(probes, lambda probe: probe.volatile_settings)
    return {device: settings for device, settings in found.items() if settings}


async def persistent(probes: Iterable[GpuProbe]) -> Sequence[DeviceName]:
    """The GPUs in persistence mode, which keeps them open.

    GPUs that do not answer at once are left out.
    """
    found = await _ask(probes, lambda probe: probe.is_persistent)
    return [device for device, is_persistent in found.items() if is_persistent]


async def _ask(
    probes: Iterable[GpuProbe], question: Callable[[GpuProbe], Callable[[], _T]]
) -> Mapping[DeviceName, _T]:
    """The answers of the GPUs that work, each of which is asked on its own thread."""
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    found: dict[DeviceName, _T] = {}
    for probe in probes:
        if probe.name is None or not probe.works:
            continue
        try:
            found[probe.name] = await probe.ask(question(probe), deadline=deadline)
        except (TimeoutError, NvmlError):
            continue
    return found
