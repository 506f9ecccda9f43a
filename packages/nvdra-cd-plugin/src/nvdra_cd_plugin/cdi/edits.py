# SPDX-License-Identifier: Apache-2.0
"""CDI edits for containers: channels for a workload, and what IMEX needs for a daemon.

Source: docs/reference/compute-domain.md, "CDI specs", "CDI specs of claims", "Security" (KW-50).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from nvdra_api.ids import CliqueID
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Mount, Spec

from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.node.device_numbers import DeviceNumbers

IMEX_DIRECTORY: Final = "/imexd"
"""Where a daemon sees the domain's directory."""

_MOUNT_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")
_DAEMON_NODES: Final = re.compile(r"/dev/nvidia(ctl|[0-9]+)")
"""The device nodes that IMEX opens. A daemon's container does not need the nodes that set up
devices, configure MIG or use channels."""


@dataclass(frozen=True, slots=True)
class DevRoot:
    """The directory tree with the host's device nodes.

    Attributes:
        path: The directory whose `dev/` has the device nodes, as the host sees it.
    """

    path: str

    def device_node(self, device: DeviceNumbers) -> DeviceNode:
        """The device in a container; the runtime creates it by its numbers."""
        host_path = "" if self.path == "/" else f"{self.path}{device.path}"
        return DeviceNode(
            path=device.path,
            host_path=host_path,
            type="c",
            major=device.major,
            minor=device.minor,
            file_mode=device.mode,
        )


def channels(dev_root: DevRoot, devices: Iterable[DeviceNumbers]) -> ContainerEdits:
    """The channels of a workload."""
    return ContainerEdits(device_nodes=tuple(map(dev_root.device_node, devices)))


def daemon(
    dev_root: DevRoot,
    domain: Domain,
    clique: CliqueID,
    directory: PurePath,
    capability: DeviceNumbers | None,
) -> ContainerEdits:
    """What a domain's daemon gets in addition to the driver: identity, directory and capability.

    Args:
        dev_root: Where the host's device nodes are.
        domain: The daemon's domain.
        clique: The node's clique. The variable is set even if it is empty: daemons take it as the
            sign that CDI works.
        directory: The domain's directory on the host.
        capability: The capability to manage IMEX; None without a fabric.
    """
    return ContainerEdits(
        env=(
            f"CLIQUE_ID={clique}",
            f"COMPUTE_DOMAIN_UUID={domain.uid}",
            f"COMPUTE_DOMAIN_NAME={domain.name}",
            f"COMPUTE_DOMAIN_NAMESPACE={domain.namespace}",
            *(("MEMBER_TRACE=true",) if domain.has_member_traces else ()),
        ),
        device_nodes=() if capability is None else (dev_root.device_node(capability),),
        mounts=(Mount(str(directory), IMEX_DIRECTORY, _MOUNT_OPTIONS),),
    )


def for_daemon_containers(management: Spec) -> Spec:
    """The spec for containers that manage GPUs, with only the device nodes that IMEX opens."""
    return replace(management, devices=tuple(map(_for_daemon_container, management.devices)))


def _for_daemon_container(device: Device) -> Device:
    nodes = device.container_edits.device_nodes
    kept = tuple(node for node in nodes if _DAEMON_NODES.fullmatch(node.path))
    return replace(device, container_edits=replace(device.container_edits, device_nodes=kept))
