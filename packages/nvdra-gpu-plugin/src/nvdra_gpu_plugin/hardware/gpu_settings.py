"""Settings of GPUs that live only as long as somebody uses the GPU."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from nvdra_runtime.node.nvml import NvmlError

from nvdra_gpu_plugin.hardware.gpu_probe import GpuProbe

_TIMEOUT_S: Final = 1.0


async def volatile(probes: Iterable[GpuProbe]) -> Mapping[str, Sequence[str]]:
    """Settings that are lost when the last session is closed, by device name.

    GPUs that do not answer at once are left out.
    """
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    found: dict[str, Sequence[str]] = {}
    for probe in probes:
        if probe.name is None or not probe.works:
            continue
        try:
            settings = await probe.ask(probe.volatile_settings, deadline=deadline)
        except (TimeoutError, NvmlError):
            continue
        if settings:
            found[probe.name] = settings
    return found
