"""What containers get, as CDI edits: a workload its channels, a daemon what IMEX needs.

Source: spec/compute-domain.md §7.9, §13.5, §14.3 (KW-50).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from nvdra_api.types.ids import CliqueID
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Mount, Spec

from nvdra_cd_plugin.channels import DeviceNumbers
from nvdra_cd_plugin.membership import Domain

IMEX_DIRECTORY: Final = "/imexd"
"""Where a daemon finds the domain's directory."""

_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")
_FOR_DAEMONS: Final = re.compile(r"/dev/nvidia(ctl|[0-9]+)")
"""Nodes that IMEX opens. Not among them: the nodes by which devices are set up, MIG is cut and
channels are used; a daemon's container needs none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the host has what the container is given.

    Attributes:
        dev_root: The tree whose `dev/` has the device nodes, as the host sees it.
    """

    dev_root: str

    def node(self, device: DeviceNumbers) -> DeviceNode:
        """The device in a container; the runtime makes it by its numbers."""
        host_path = "" if self.dev_root == "/" else f"{self.dev_root}{device.path}"
        return DeviceNode(
            path=device.path,
            host_path=host_path,
            type="c",
            major=device.major,
            minor=device.minor,
            file_mode=device.mode,
        )


def channels(place: Place, devices: Iterable[DeviceNumbers]) -> ContainerEdits:
    """What a workload gets."""
    return ContainerEdits(device_nodes=tuple(map(place.node, devices)))


def daemon(
    place: Place,
    domain: Domain,
    clique: CliqueID,
    directory: PurePath,
    capability: DeviceNumbers | None,
) -> ContainerEdits:
    """What a domain's daemon gets beside the driver: who it is, its directory, its capability.

    Args:
        place: Where device nodes are.
        domain: What it is the daemon of.
        clique: Of its node; named although empty, because daemons tell by that whether CDI works.
        directory: The domain's on the host.
        capability: The right to manage IMEX; None without fabric.
    """
    return ContainerEdits(
        env=(
            f"CLIQUE_ID={clique}",
            f"COMPUTE_DOMAIN_UUID={domain.uid}",
            f"COMPUTE_DOMAIN_NAME={domain.name}",
            f"COMPUTE_DOMAIN_NAMESPACE={domain.namespace}",
        ),
        device_nodes=() if capability is None else (place.node(capability),),
        mounts=(Mount(str(directory), IMEX_DIRECTORY, _OPTIONS),),
    )


def for_daemons(management: Spec) -> Spec:
    """The spec for who manages GPUs, cut down to the nodes that IMEX opens."""
    return replace(management, devices=tuple(map(_cut_down, management.devices)))


def _cut_down(device: Device) -> Device:
    nodes = device.container_edits.device_nodes
    kept = tuple(node for node in nodes if _FOR_DAEMONS.fullmatch(node.path))
    return replace(device, container_edits=replace(device.container_edits, device_nodes=kept))
