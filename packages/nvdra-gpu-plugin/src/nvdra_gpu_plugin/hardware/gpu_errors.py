# SPDX-License-Identifier: Apache-2.0
"""The errors that a GPU answers with, and when they mean that it is lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple

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


class Moment(NamedTuple):
    """A moment on the monotonic clock and on the wall clock."""

    monotonic: float
    time: datetime


@dataclass(frozen=True, slots=True)
class GpuErrors:
    """The errors of one GPU.

    Attributes:
        last: The last answer, if it was an error.
        since: Since when its text has been the same; None before the first error.
        began: When the first of the errors in a row came, in monotonic seconds.
    """

    last: NvmlError | ValueError | None = None
    since: datetime | None = None
    began: float = 0.0

    @property
    def text(self) -> str:
        """The last answer, if it was an error; otherwise empty."""
        return "" if self.last is None else str(self.last)

    @property
    def is_loss_certain(self) -> bool:
        """Whether the last answer says by itself that the GPU is lost."""
        return isinstance(self.last, NvmlError) and self.last.code in LOSSES

    def after(self, error: NvmlError | ValueError | None, now: Moment) -> "GpuErrors":
        """The errors after another answer; None is one without an error."""
        if error is None:
            return NO_ERRORS
        return GpuErrors(
            error,
            self.since if self.text == str(error) else now.time,
            now.monotonic if self.last is None else self.began,
        )

    def loss(self, monotonic: float) -> GpuLoss | None:
        """Why the GPU counts as lost; None if it does not, or not yet."""
        if not isinstance(self.last, NvmlError) or self.last.is_driver_error:
            return None
        if self.is_loss_certain:
            return LOSSES[self.last.code]
        return GpuLoss.NVML_ERRORS if monotonic - self.began >= LASTING_S else None


NO_ERRORS: Final = GpuErrors()
"""Those of a GPU that has not answered with any."""
