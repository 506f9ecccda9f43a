# SPDX-License-Identifier: Apache-2.0
"""What a kubelet's version says about the registration of plugins.

Source: docs/reference/kubelet-plugin.md, "Rolling updates".
"""

import re
from typing import Final

_FIRST_WITH_SEVERAL_INSTANCES: Final = (1, 33)


def registers_several_instances(version: str) -> bool:
    """Whether several instances of a driver can be registered with the kubelet.

    With older kubelets, removing the socket of one instance removes the registration of the other.

    Args:
        version: `status.nodeInfo.kubeletVersion` of the Node, such as `v1.33.13` or
            `v1.34.4-eks-1234`. A version that cannot be read counts as old.
    """
    return release(version) >= _FIRST_WITH_SEVERAL_INSTANCES


def release(version: str) -> tuple[int, int]:
    """The release in the version of a component of Kubernetes; (0, 0) if it cannot be read."""
    found = re.match(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.|$)", version)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
