# SPDX-License-Identifier: Apache-2.0
"""Extended resources of GPUs that a device plugin offers, and the remark on them. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_GPU_RESOURCE: Final = re.compile(r"nvidia\.com/(gpu|pgpu|mig-[a-z0-9.-]+?)(\.shared)?")
"""As NVIDIA's device plugins name them: whole GPUs, GPUs for virtual machines, MIG devices with the
strategy `mixed`, each with `.shared` if it is given to several pods. Other devices have this
prefix, too, such as `nvidia.com/hostdev` for network devices."""

_ADVICE: Final = (
    "remove the device plugin from this node, or this driver (docs/device-plugin.md says how)"
)


def is_of_gpus(resource: str) -> bool:
    """Whether a resource of a device plugin gives a pod a GPU of NVIDIA's or a part of one."""
    return _GPU_RESOURCE.fullmatch(resource) is not None


@dataclass(frozen=True, slots=True)
class OfferedGpus:
    """What a device plugin has to do with this node's GPUs.

    Attributes:
        devices: How many devices a plugin that is connected to the kubelet offers, by resource. A
            GPU that is shared counts as often as it is shared.
        pods: How many pods of the node hold such devices, by resource, also without the plugin.
    """

    devices: Mapping[str, int] = field(default_factory=dict)
    pods: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What that is, and what to do; empty if no device plugin has anything to do with them."""
        offer = f"a device plugin offers {_listed(self.devices, 'device')}"
        held = f"devices of a device plugin are held: {_listed(self.pods, 'pod')}"
        facts = [offer] if self.devices else []
        facts += [held] if self.pods else []
        if not facts:
            return ""
        return (
            f"{' and '.join(facts)} on this node: it and this driver do not see each other's pods, "
            f"so that two can be given the same GPU; {_ADVICE}"
        )


def _listed(counts: Mapping[str, int], noun: str) -> str:
    return ", ".join(
        f"{resource} ({count} {noun}{'' if count == 1 else 's'})"
        for resource, count in sorted(counts.items())
    )
