# SPDX-License-Identifier: Apache-2.0
"""Looks at GPUs that NVML does not answer, or with an error."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from nvdra_api.ids import GpuUUID

_LASTING_S: Final = 60.0
"""A GPU that could not be looked at for so long is not monitored. A busy driver answers late."""


class FailedLook(NamedTuple):
    """A look without a result."""

    error: str


class FailedLooks:
    """The GPUs whose last look has failed, and since when."""

    def __init__(self) -> None:
        self._began: Mapping[GpuUUID, float] = {}
        self._errors: Mapping[GpuUUID, str] = {}

    def note(self, failed: Mapping[GpuUUID, FailedLook], monotonic: float) -> None:
        """Take note of the last look at all GPUs: those that have failed."""
        self._began = {uuid: self._began.get(uuid, monotonic) for uuid in failed}
        self._errors = {uuid: look.error for uuid, look in failed.items()}

    def lasting(self, monotonic: float) -> Mapping[GpuUUID, str]:
        """The GPUs whose looks have failed for a minute, with the last error."""
        return {
            uuid: f"NVML does not say how it is: {self._errors[uuid]}"
            for uuid, began in self._began.items()
            if monotonic - began >= _LASTING_S
        }
