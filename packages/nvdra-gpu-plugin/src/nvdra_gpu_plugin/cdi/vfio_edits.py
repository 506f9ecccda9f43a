# SPDX-License-Identifier: Apache-2.0
"""What a container gets of GPUs that are passed to its virtual machine: nodes of VFIO. Pure.

A device has its edits to itself and the claim has none, as a claim may have GPUs, MIG devices and
vfio devices: containers of the others get the driver's libraries.

Source: docs/reference/gpu-prepare.md, "CDI for VFIO claims"; docs/reference/api-types.md,
"VfioDeviceConfig and IOMMUConfig".
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import DeviceName, PciAddress
from nvdra_api.v1beta1 import VfioDeviceConfig
from nvdra_cdi.model import ContainerEdits, DeviceNode

_ENVIRONMENT: Final = ("NVIDIA_VISIBLE_DEVICES=void",)
"""NVIDIA's container runtime would add GPUs by an image's own value otherwise."""

_PREFER_IOMMUFD: Final = "PreferIommuFD"
_DEV: Final = "/dev"


class Backend(StrEnum):
    """How a process gets at a device: by its IOMMU group, or by a node of the device itself.

    A device that is open by one of them cannot be opened by the other, and Kata Containers fails
    with both (kubernetes-sigs/dra-driver-nvidia-gpu#1036).
    """

    LEGACY = "legacy"
    IOMMUFD = "iommufd"


_CONTROL_NODES: Final = {Backend.LEGACY: "/dev/vfio/vfio", Backend.IOMMUFD: "/dev/iommu"}


@dataclass(frozen=True, slots=True)
class BoundGpu:
    """A GPU that is bound to its vfio driver, as sysfs and `/dev` show it after the bind.

    Attributes:
        device: The name of the vfio device.
        pci: Its PCI address.
        iommu_group: Its IOMMU group.
        cdev: The name of its node in `/dev/vfio/devices`, such as `vfio0`; None if there is no such
            node. The entry `vfio-dev/vfio0` in sysfs is also on kernels without these nodes (seen
            on Linux 6.12), and the number is another one after each bind.
    """

    device: DeviceName
    pci: PciAddress
    iommu_group: int
    cdev: str | None = None


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The back end of a claim, the same for all its vfio devices.

    Attributes:
        backend: The back end.
        reason: Why, for the log and the span; no final full stop.
    """

    backend: Backend
    reason: str


def agreed_config(configs: Mapping[DeviceName, VfioDeviceConfig]) -> VfioDeviceConfig:
    """What the configs of a claim's vfio devices say together.

    Args:
        configs: The normalized config of each device; at least one.

    Raises:
        PermanentError: InvalidConfig, as they ask for different back ends.
    """
    policies: dict[str, DeviceName] = {}
    for device in sorted(configs):
        policies.setdefault(_policy(configs[device]), device)
    if len(policies) > 1:
        (first, one), (second, other) = sorted(policies.items())
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"{one} has the backendPolicy {first} and {other} of the same claim {second}; a "
            "virtual machine opens all its devices by one back end",
            "give all vfio devices of the claim the same backendPolicy, or make two claims",
            device=str(other),
        )
    has_control = any(
        config.iommu is not None and config.iommu.enable_api_device for config in configs.values()
    )
    (first_config, *_) = (configs[device] for device in sorted(configs))
    iommu = first_config.iommu
    if iommu is not None:
        iommu = iommu.model_copy(update={"enable_api_device": has_control})
    return first_config.model_copy(update={"iommu": iommu})


def choose_backend(
    config: VfioDeviceConfig, gpus: Collection[BoundGpu], *, has_iommufd: bool
) -> BackendChoice:
    """The back end for a claim's vfio devices: exactly one.

    `PreferIommuFD` is a preference: without what iommufd needs, the claim gets the legacy nodes.

    Args:
        config: From `agreed_config`.
        gpus: All vfio devices of the claim.
        has_iommufd: Whether `/dev/iommu` exists.
    """
    if _policy(config) != _PREFER_IOMMUFD:
        return BackendChoice(Backend.LEGACY, f"backendPolicy is {_policy(config)}")
    if not has_iommufd:
        return BackendChoice(Backend.LEGACY, "the node has no /dev/iommu")
    without = sorted(gpu.device for gpu in gpus if gpu.cdev is None)
    if without:
        return BackendChoice(
            Backend.LEGACY, f"{', '.join(without)} has no node in /dev/vfio/devices"
        )
    return BackendChoice(Backend.IOMMUFD, "backendPolicy is PreferIommuFD and the node has iommufd")


def of_devices(
    gpus: Collection[BoundGpu],
    backend: Backend,
    *,
    enable_api_device: bool = False,
    dev_root: str = _DEV,
) -> dict[DeviceName, ContainerEdits]:
    """The edits of each vfio device of a claim.

    Nodes that devices have in common, their group's and the control node, are in the edits of each,
    as a container may have any of them alone. A runtime that applies both has such a node once: it
    replaces a node of the same path (`AddDevice` of opencontainers/runtime-tools).

    Numbers of nodes are left to the runtime: the driver gets its major number when it is loaded.

    Args:
        gpus: The vfio devices, bound to their vfio driver.
        backend: From `choose_backend`.
        enable_api_device: Whether containers get `/dev/vfio/vfio`, or `/dev/iommu`. KubeVirt needs
            it; Kata Containers opens it on the host.
        dev_root: Where the container runtime has the host's `/dev`.

    Raises:
        RetryableError: DeviceNodeMissing, as a device has no node for this back end.
    """
    control = (_CONTROL_NODES[backend],) if enable_api_device else ()
    return {
        gpu.device: ContainerEdits(
            env=_ENVIRONMENT,
            device_nodes=tuple(_node(path, dev_root) for path in (*control, _path(gpu, backend))),
        )
        for gpu in gpus
    }


def _path(gpu: BoundGpu, backend: Backend) -> str:
    if backend is Backend.LEGACY:
        return f"/dev/vfio/{gpu.iommu_group}"
    if gpu.cdev is None:
        raise RetryableError(
            Reason.DEVICE_NODE_MISSING,
            f"{gpu.device} ({gpu.pci}) has no node in /dev/vfio/devices any more",
            device=str(gpu.device),
        )
    return f"/dev/vfio/devices/{gpu.cdev}"


def _node(path: str, dev_root: str) -> DeviceNode:
    host_path = dev_root.rstrip("/") + path.removeprefix(_DEV)
    return DeviceNode(path, host_path="" if host_path == path else host_path)


def _policy(config: VfioDeviceConfig) -> str:
    return (config.iommu and config.iommu.backend_policy) or "LegacyOnly"
