# SPDX-License-Identifier: Apache-2.0
"""What taints of GPUs mean, and what to do about them: for Events and for the status of pods.

The remedy for an XID is the one that NVML asks for, if it says one.
"""

from types import MappingProxyType
from typing import Final, NamedTuple

from nvdra_api.resource.slices import DeviceTaint

from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.health import recovery_actions
from nvdra_gpu_plugin.health.gpu_health import (
    ECC_KEY,
    FABRIC_KEY,
    INFORMATIONAL,
    LOST_KEY,
    REMAPPING_KEY,
    XID_KEY,
)
from nvdra_gpu_plugin.health.recovery_actions import RecoveryAction
from nvdra_gpu_plugin.health.vfio_health import PCI_SILENT, PCIE_ERRORS_KEY


class Explanation(NamedTuple):
    """What is wrong with a GPU, with the place of the taint's value; and what to do."""

    what: str
    remedy: str

    def of(self, taint: DeviceTaint, effect: str = "") -> str:
        """The text, without the GPU's name; `effect` says what follows from it."""
        return f"{self.what.format(value=taint.value)}: {effect}{self.remedy}"


EXPLANATIONS: Final = MappingProxyType(
    {
        LOST_KEY: Explanation(
            "has fallen off the bus",
            "look for Xid messages in the node's kernel log and reboot the node; it is well again "
            "once it answers",
        ),
        f"{LOST_KEY}={GpuLoss.RESET_REQUIRED}": Explanation(
            "has to be reset before it can be used again (NVML error 16)",
            "drain its node, and reset the GPU or reboot the node; it is well again once it "
            "answers",
        ),
        f"{LOST_KEY}={GpuLoss.NVML_ERRORS}": Explanation(
            "has answered NVML with errors for half a minute",
            "look for Xid messages in the node's kernel log, drain the node, and reset the GPU or "
            "reboot the node; it is well again once it answers",
        ),
        f"{LOST_KEY}={PCI_SILENT}": Explanation(
            "answers no access over PCI any more while it is on vfio",
            "end its virtual machine, look for messages of pcieport and vfio-pci in the node's "
            "kernel log and reboot the node; it is well again once it answers",
        ),
        ECC_KEY: Explanation(
            "has had {value} memory errors since its last reset",
            "drain and reset it, because its driver (before branch 570) cannot tell whether it has "
            "to be; it is well again after the reset",
        ),
        FABRIC_KEY: Explanation(
            "does not work in its NVLink fabric ({value})",
            "look at the fabric manager's log and at the Fabric section of nvidia-smi -q, and "
            "reset the GPU if need be; it is well again once NVML says so",
        ),
        PCIE_ERRORS_KEY: Explanation(
            "has had fatal errors of PCIe while it was on vfio",
            "restart its virtual machine, and look for AER in the node's kernel log; if it recurs, "
            "check the GPU's slot and cables or replace it; it is well again after ten minutes "
            "without one",
        ),
        REMAPPING_KEY: Explanation(
            "cannot remap a broken row of its memory, because no spare row is left",
            "replace the GPU (nvidia-smi -q shows Remapped Rows)",
        ),
        XID_KEY: Explanation(
            "has reported XID {value}",
            "drain and reset it, or drain its node and reboot it where nvidia-smi -q shows that as "
            "the recovery action; it is well again once the driver asks for none",
        ),
    }
)
"""By the key of a taint that keeps pods away, or by `key=value` where its value matters."""


def find(taint: DeviceTaint, action: int = RecoveryAction.NONE) -> Explanation | None:
    """What is wrong and what to do; None for a taint that keeps no pod away.

    Args:
        taint: The taint.
        action: What NVML asks for so that the GPU recovers.
    """
    if taint.effect == INFORMATIONAL:
        return None
    if taint.key == XID_KEY and action != RecoveryAction.NONE:
        name = recovery_actions.describe(action)
        return EXPLANATIONS[XID_KEY]._replace(
            remedy=f"{recovery_actions.remedy(action)} (recovery action: {name}); it is well again "
            "once the driver asks for none"
        )
    return EXPLANATIONS.get(f"{taint.key}={taint.value}") or EXPLANATIONS.get(taint.key)
