# SPDX-License-Identifier: Apache-2.0
"""The taints of vfio devices alone: as a GPU, the same hardware can be allocated.

One is that of a device whose GPU a process of the node uses, so that it cannot be rebound: without
it the scheduler would choose the same device for the next virtual machine. The others follow from
the health of GPUs that vfio has (`health.vfio_monitor`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from nvdra_api.ids import VfioUUID
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


def joined(
    busy: Mapping[VfioUUID, DeviceTaint], unwell: Mapping[VfioUUID, Sequence[DeviceTaint]]
) -> dict[VfioUUID, tuple[DeviceTaint, ...]]:
    """All taints of vfio devices that have some, for `layout.pool`.

    Args:
        busy: Those of `busy`.
        unwell: Those of GPUs that do not work, from `VfioMonitor.taints`.
    """
    found: dict[VfioUUID, tuple[DeviceTaint, ...]] = {
        uuid: tuple(taints) for uuid, taints in unwell.items()
    }
    for uuid, taint in busy.items():
        found[uuid] = tuple(sorted((*found.get(uuid, ()), taint), key=lambda each: each.key))
    return found
