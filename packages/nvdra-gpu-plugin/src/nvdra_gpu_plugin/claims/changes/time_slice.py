# SPDX-License-Identifier: Apache-2.0
"""Time slices: several processes take turns on a GPU.

A setting is written only if it is another one, because nvidia-smi takes time and the driver logs
every change. Source: docs/reference/gpu-prepare.md, "Time-slicing".
"""

from typing import Final

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.v1beta1.sharing import Interval
from nvdra_runtime.claims.changes import ChangeKind, Keep
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml import DeviceHandle, Nvml
from nvdra_runtime.telemetry import logs

from nvdra_gpu_plugin.devices.claim_index import GpuClaimIndex
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.steps import GpuSharing, ShareByTime
from nvdra_gpu_plugin.driver import nvidia_smi
from nvdra_gpu_plugin.driver.nvidia_smi import SmiError
from nvdra_gpu_plugin.hardware.gpu_changes import GpuChanges

LOG = logs.logger(__name__)

_DEFAULT: Final = "Default"
"""The time slice that a GPU starts with."""

_SHARED: Final = 0
"""`NVML_COMPUTEMODE_DEFAULT`: several processes may use the GPU."""


class TimeSliceKind(ChangeKind[GpuClaimRecord, ShareByTime]):
    """Sets time slices. The last claim that shares a GPU restores how it was before the first."""

    def __init__(self, gpus: GpuChanges, claims: GpuClaimIndex, boot_id: str, host: Host) -> None:
        self._gpus = gpus
        self._claims = claims
        self._boot_id = boot_id
        self._host = host

    async def inspect(self, claim: GpuClaimRecord, change: ShareByTime) -> ShareByTime:
        """How the GPU was shared before the claims that share it."""
        other = self._other(claim, change)
        if other is not None:
            return change.model_copy(update={"former": other.former})
        former = await self._gpus.run(change.gpu, change.device, current, self._host)
        return change.model_copy(update={"former": former})

    async def apply(
        self, claim: GpuClaimRecord, change: ShareByTime, keep: Keep[ShareByTime]
    ) -> ShareByTime:
        """Set it. A GPU without time slices has the default."""
        wanted = GpuSharing(interval=change.interval, compute_mode=_SHARED)
        await self._set(change, wanted, may_lack_slices=change.interval == _DEFAULT)
        return change

    async def is_in_force(self, claim: GpuClaimRecord, change: ShareByTime) -> bool:
        """As far as the driver says."""
        now = await self._gpus.run(change.gpu, change.device, current, self._host)
        return now.compute_mode == _SHARED and now.interval in (None, change.interval)

    async def revert(self, claim: GpuClaimRecord, change: ShareByTime) -> None:
        """Share the GPU as before. What is not known is as the driver starts with it.

        A time slice that was not known and cannot be set was not set by the change either: P4 and
        other boards have none (kubernetes-sigs/dra-driver-nvidia-gpu#41).
        """
        if self._other(claim, change) is None:
            former = change.former or GpuSharing(interval=None, compute_mode=_SHARED)
            await self._set(change, former, may_lack_slices=former.interval is None)

    async def _set(
        self, change: ShareByTime, sharing: GpuSharing, *, may_lack_slices: bool
    ) -> None:
        await self._gpus.run(
            change.gpu, change.device, _set, self._host, change.device, sharing, may_lack_slices
        )

    def _other(self, claim: GpuClaimRecord, change: ShareByTime) -> ShareByTime | None:
        """The change of another claim that shares the GPU, as it was begun in this boot."""
        others = (
            other
            for other in self._claims.changing(change.gpu, self._boot_id)
            if other.uid != claim.uid
        )
        return next(filter(None, (other.time_sharing(change.gpu) for other in others)), None)


def current(nvml: Nvml, gpu: DeviceHandle, host: Host) -> GpuSharing:
    """How the GPU is shared now.

    Raises:
        NvmlError: The GPU does not answer.
    """
    return GpuSharing(
        interval=nvidia_smi.time_slice(host, gpu.uuid), compute_mode=nvml.compute_mode(gpu)
    )


def _set(
    nvml: Nvml,
    gpu: DeviceHandle,
    host: Host,
    device: str,
    sharing: GpuSharing,
    may_lack_slices: bool,
) -> None:
    now = current(nvml, gpu, host)
    if now.compute_mode != sharing.compute_mode:
        nvml.set_compute_mode(gpu, sharing.compute_mode)
    interval: Interval = sharing.interval or _DEFAULT
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
