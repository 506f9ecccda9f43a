# SPDX-License-Identifier: Apache-2.0
"""The errors that a GPU answers with, and when they mean that it is lost."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from nvdra_runtime.node.nvml import NvmlError, ReturnCode

from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss

LASTING_S: Final = 30.0
"""A GPU that has answered with errors for so long in one session counts as lost. A driver that is
busy, or that is being replaced, fails calls for seconds. The limit is shorter than the minute after
which NVML is opened again for a GPU that does not work."""

LOSSES: Final[Mapping[int, GpuLoss]] = MappingProxyType(
    {
        ReturnCode.GPU_IS_LOST: GpuLoss.OFF_THE_BUS,
        ReturnCode.RESET_REQUIRED: GpuLoss.RESET_REQUIRED,
    }
)
"""What return codes say at once."""


class GpuErrors:
    """The errors of one GPU.

    Attributes:
        text: The last answer, if it was an error; otherwise empty.
        since: Since when it has been the same.
    """

    def __init__(self, now: datetime) -> None:
        self.text = ""
        self.since = now
        self._last: NvmlError | ValueError | None = None
        self._began = 0.0

    @property
    def is_loss_certain(self) -> bool:
        """Whether the last answer says by itself that the GPU is lost."""
        return isinstance(self._last, NvmlError) and self._last.code in LOSSES

    def note(self, error: NvmlError | ValueError | None, now: datetime, monotonic: float) -> None:
        """Take note of an answer; None is one without an error."""
        text = "" if error is None else str(error)
        if text != self.text:
            self.text, self.since = text, now
        if self._last is None:
            self._began = monotonic
        self._last = error

    def loss(self, monotonic: float) -> GpuLoss | None:
        """Why the GPU counts as lost; None if it does not, or not yet."""
        if not isinstance(self._last, NvmlError) or self._last.is_driver_error:
            return None
        if self.is_loss_certain:
            return LOSSES[self._last.code]
        return GpuLoss.NVML_ERRORS if monotonic - self._began >= LASTING_S else None
