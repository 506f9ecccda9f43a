# SPDX-License-Identifier: Apache-2.0
"""Compute modes: one process alone uses a GPU, the MPS server of its clients.

Source: docs/reference/gpu-prepare.md, "MPS".
"""

from typing import Final

from nvdra_runtime.claims.changes import ChangeKind, Keep
from nvdra_runtime.node.nvml import DeviceHandle, Nvml

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import SetComputeMode
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges

_SHARED: Final = 0
"""`NVML_COMPUTEMODE_DEFAULT`: the mode that a GPU starts with."""


class ComputeModeKind(ChangeKind[GpuClaimRecord, SetComputeMode]):
    """Sets compute modes."""

    def __init__(self, gpus: GpuChanges) -> None:
        self._gpus = gpus

    async def inspect(self, claim: GpuClaimRecord, change: SetComputeMode) -> SetComputeMode:
        """The mode before the claim."""
        return change.model_copy(update={"former": await self._current(change)})

    async def apply(
        self, claim: GpuClaimRecord, change: SetComputeMode, keep: Keep[SetComputeMode]
    ) -> SetComputeMode:
        """Set the mode."""
        await self._gpus.run(change.gpu, change.device, _set, change.mode)
        return change

    async def is_in_force(self, claim: GpuClaimRecord, change: SetComputeMode) -> bool:
        """Whether the GPU has the mode."""
        return await self._current(change) == change.mode

    async def revert(self, claim: GpuClaimRecord, change: SetComputeMode) -> None:
        """Set the mode of before; what is not known, as the driver starts with."""
        former = _SHARED if change.former is None else change.former
        await self._gpus.run(change.gpu, change.device, _set, former)

    async def _current(self, change: SetComputeMode) -> int:
        return await self._gpus.run(change.gpu, change.device, Nvml.compute_mode)


def _set(nvml: Nvml, gpu: DeviceHandle, mode: int) -> None:
    if nvml.compute_mode(gpu) != mode:
        nvml.set_compute_mode(gpu, mode)
