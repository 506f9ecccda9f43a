# SPDX-License-Identifier: Apache-2.0
"""What NVML asks for so that a GPU recovers (`nvmlDeviceGpuRecoveryAction_t`).

Source: NVIDIA's "GPU Memory Error Management" (error recovery and response flags), and the enum
`DeviceGpuRecoveryAction` of cuda-python for the later ones.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class RecoveryAction(IntEnum):
    """The actions that are known. RECOVER_IMEX_DOMAIN and later ones came with NVML 595 and 615."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


NOT_OF_THE_GPU: Final = (RecoveryAction.NONE, RecoveryAction.RECOVER_IMEX_DOMAIN)
"""Actions that ask for nothing to be done with the GPU itself."""

_REMEDIES: Final[Mapping[int, str]] = MappingProxyType(
    {
        RecoveryAction.GPU_RESET: "drain and reset it",
        RecoveryAction.NODE_REBOOT: "drain its node and reboot it",
        RecoveryAction.DRAIN_P2P: (
            "end the programs on it that exchange data with other GPUs directly (peer to peer); "
            "the driver then says what else it needs"
        ),
        RecoveryAction.DRAIN_AND_RESET: (
            "end the programs that exchange data with it directly (peer to peer), drain and reset "
            "it"
        ),
        RecoveryAction.BUS_RESET: "drain its node and reset the GPU's PCIe bus",
        RecoveryAction.SYSTEM_REBOOT: "drain its node and reboot the whole system",
    }
)


def describe(action: int) -> str:
    """The name of an action, as NVIDIA writes it."""
    if action not in list(RecoveryAction):
        return f"number {action}"
    words = RecoveryAction(action).name.replace("_", " ").lower()
    for known in ("GPU", "P2P", "IMEX"):
        words = words.replace(known.lower(), known)
    return words


def remedy(action: int) -> str:
    """What to do; for an action that is not known, where to look it up."""
    return _REMEDIES.get(action, "do what nvidia-smi -q shows as the GPU Recovery Action")
