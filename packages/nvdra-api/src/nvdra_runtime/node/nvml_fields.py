# SPDX-License-Identifier: Apache-2.0
"""Field values of NVML that say how well a GPU is, all of them in one call.

Source: docs/reference/nvml-simulator.md, "Event and fabric functions".
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from nvdra_runtime.node.nvml import DeviceHandle, Nvml, NvmlError, ReturnCode


class Field(IntEnum):
    """What is asked (`NVML_FI_DEV_…`). NVML knows more fields.

    UNCORRECTED_ERRORS: ECC errors that could not be corrected, since the last reset.
    REMAPPING_PENDING, REMAPPING_FAILED: 1 if rows of memory wait for a reset to be remapped, or if
    it has failed, because no spare row is left.
    RECOVERY_ACTION: what the GPU needs in order to recover (`nvmlDeviceGpuRecoveryAction_t`): 0
    nothing, 1 a reset, 2 a reboot of the node, 3 that peer-to-peer traffic ends, 4 that all work
    ends, and a reset, 5 that its IMEX domain recovers, 6 a reset of its PCIe bus, 7 a reboot of the
    system. Since branch 570.
    """

    UNCORRECTED_ERRORS = 4
    REMAPPING_PENDING = 144
    REMAPPING_FAILED = 145
    RECOVERY_ACTION = 230


_UNSUPPORTED: Final = (ReturnCode.INVALID_ARGUMENT, ReturnCode.NOT_SUPPORTED)

_LOST: Final = (ReturnCode.GPU_IS_LOST, ReturnCode.RESET_REQUIRED)

_MEMBERS: Final = {1: "uiVal", 2: "ulVal", 3: "ullVal"}
"""By the number of the type: where a value that is not negative is."""


def read(nvml: Nvml, gpu: DeviceHandle) -> Mapping[Field, int]:
    """The values of a GPU, without those that it or its driver does not have.

    Raises:
        NvmlError: The GPU does not answer, or it is not known whether it needs a recovery.
    """
    try:
        values = nvml.call("nvmlDeviceGetFieldValues", gpu.uuid, gpu.pointer, list(map(int, Field)))
    except NvmlError as error:
        if error.is_unsupported:
            return {}
        raise
    found: dict[Field, int] = {}
    for field, value in zip(Field, values, strict=True):
        code = int(value.nvmlReturn)
        if code == 0:
            found[field] = _number(value)
        elif code in _UNSUPPORTED:
            continue
        elif field is Field.RECOVERY_ACTION or code in _LOST:
            raise NvmlError(code, "nvmlDeviceGetFieldValues", gpu.uuid, f"field {field.name}")
    return found


def _number(value: Any) -> int:
    return int(getattr(value.value, _MEMBERS.get(int(value.valueType), "uiVal")))
