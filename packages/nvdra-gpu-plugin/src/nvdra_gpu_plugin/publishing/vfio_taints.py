# SPDX-License-Identifier: Apache-2.0
"""The taint of a vfio device whose GPU a process of the node uses, so that it cannot be rebound.

Without it the scheduler would choose the same device for the next virtual machine. The taint is on
the vfio device alone: as a GPU it can be allocated.
"""

import re
from typing import Final

from nvdra_api.resource.slices import DeviceTaint

BUSY_KEY: Final = "gpu.nvidia.com/passthrough-busy"
UNKNOWN: Final = "unknown"
"""The value for a process whose command is not known."""

_LONGEST: Final = 63
_NOT_IN_VALUES: Final = re.compile(r"[^0-9A-Za-z._-]+")
_AT_ENDS: Final = "._-"


def busy(command: str) -> DeviceTaint:
    """The taint while a process holds the GPU.

    Args:
        command: The process's command, as the kernel has it; a program may choose any.

    Returns:
        The taint. Its value is the command as the value of a label, which the API server wants of a
        taint's value: at most 63 letters, digits, dots, dashes and underscores, with a letter or
        digit at both ends.
    """
    value = _NOT_IN_VALUES.sub("-", command).strip(_AT_ENDS)[:_LONGEST].rstrip(_AT_ENDS)
    return DeviceTaint(key=BUSY_KEY, value=value or UNKNOWN, effect="NoSchedule")
