# SPDX-License-Identifier: Apache-2.0
"""Why a GPU cannot be used until it is reset, its node is rebooted, or it is replaced."""

from enum import StrEnum


class GpuLoss(StrEnum):
    """The value of the taint `gpu.nvidia.com/gpu-lost`.

    OFF_THE_BUS: it has fallen off the bus. RESET_REQUIRED: NVML says that it needs a reset before
    it can be used again. NVML_ERRORS: it has answered with other errors for half a minute.
    """

    OFF_THE_BUS = ""
    RESET_REQUIRED = "reset-required"
    NVML_ERRORS = "nvml-errors"
