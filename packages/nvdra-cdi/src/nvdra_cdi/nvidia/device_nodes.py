# SPDX-License-Identifier: Apache-2.0
"""Find the driver's device nodes (docs/reference/cdi.md §§13.6, 14.1, 16.1, 17).

Files that are not character devices are left out with a warning. A missing node that a container
requires raises `DiscoveryError`.
"""

import logging
from collections.abc import Iterable, Mapping

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.nvidia.facts import CharacterDevice, GpuDeviceNodes
from nvdra_cdi.nvidia.options import GatedMode, Gpu
from nvdra_cdi.rooted_files import RootedFiles

_CONTROL_NODES = (
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-uvm",
    "/dev/nvidiactl",
)
_CHANNELS = "/dev/nvidia-caps-imex-channels"
_MANAGEMENT_NODES = (
    ("/dev", "nvidia*"),
    ("/dev/nvidia-caps", "nvidia-cap*"),
    (_CHANNELS, "channel*"),
)
_NOT_FOR_MANAGEMENT = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
_GATED_NODES: Mapping[GatedMode, tuple[tuple[str, str], ...]] = {
    GatedMode.GDS: (("/dev", "nvidia-fs*"),),
    GatedMode.GDRCOPY: (("/dev", "gdrdrv"),),
    GatedMode.MOFED: (("/dev/infiniband", "uverbs*"), ("/dev/infiniband", "rdma_cm")),
    GatedMode.NVSWITCH: (("/dev", "nvidia-nvswitchctl"), ("/dev", "nvidia-nvswitch*")),
}
_PERMISSIONS = 0o7777

_log = logging.getLogger(__name__)


def control_nodes(devices: RootedFiles) -> tuple[CharacterDevice, ...]:
    """The existing nodes that every container with a GPU gets."""
    return _nodes(devices, _CONTROL_NODES)


def gpu_nodes(devices: RootedFiles, sysfs: RootedFiles, gpu: Gpu) -> GpuDeviceNodes:
    """The device node and DRM nodes of a GPU, with the links that DRM clients use to find them.

    Raises:
        DiscoveryError: The GPU's own node does not exist.
    """
    own = gpu_node(devices, gpu)
    drm = sysfs.listdir(f"/bus/pci/devices/{gpu.pci_address}/drm")
    wanted = [f"/dev/dri/{name}" for name in drm if name.startswith(("card", "renderD"))]
    nodes = (own, *_nodes(devices, tuple(wanted)))
    return GpuDeviceNodes(nodes, tuple(_by_path(devices, gpu, nodes)))


def gpu_node(devices: RootedFiles, gpu: Gpu) -> CharacterDevice:
    """The device node of a GPU.

    Raises:
        DiscoveryError: The node does not exist.
    """
    for node in _nodes(devices, (gpu.device_node_path,)):
        return node
    raise DiscoveryError(f"no device node {gpu.device_node_path} below {devices} for {gpu.uuid}")


def imex_channels(devices: RootedFiles) -> list[int]:
    """The numbers of the IMEX channels that have a device node, sorted."""
    names = (path.rpartition("/channel")[2] for path in devices.glob(_CHANNELS, "channel*"))
    numbers = sorted(int(name) for name in names if name.isdigit() and name.isascii())
    return [number for number in numbers if imex_channel(devices, number) is not None]


def imex_channel(devices: RootedFiles, number: int) -> CharacterDevice | None:
    """The device node of an IMEX channel, or None if it does not exist."""
    return next(iter(_nodes(devices, (channel_path(number),))), None)


def channel_path(number: int) -> str:
    """The path of an IMEX channel in the container."""
    return f"{_CHANNELS}/channel{number}"


def management_nodes(devices: RootedFiles) -> tuple[CharacterDevice, ...]:
    """All device nodes of the driver, without those of other subsystems with a similar name."""
    return tuple(
        node
        for node in _matching(devices, _MANAGEMENT_NODES)
        if not node.path.rpartition("/")[2].startswith(_NOT_FOR_MANAGEMENT)
    )


def gated_nodes(devices: RootedFiles, mode: GatedMode) -> tuple[CharacterDevice, ...]:
    """The device nodes of a gated mode.

    Raises:
        DiscoveryError: There are none.
    """
    found = _matching(devices, _GATED_NODES[mode])
    if not found:
        wanted = " or ".join("/".join(place) for place in _GATED_NODES[mode])
        raise DiscoveryError(
            f"no device node {wanted} for {mode} below {devices}: is its kernel module loaded?"
        )
    return found


def capability_node(devices: RootedFiles, path: str) -> CharacterDevice:
    """The device node of a capability.

    Raises:
        DiscoveryError: The node does not exist.
    """
    for node in _nodes(devices, (path,)):
        return node
    raise DiscoveryError(f"no device node {path} below {devices}: has nvidia-modprobe created it?")


def _matching(
    devices: RootedFiles, places: Iterable[tuple[str, str]]
) -> tuple[CharacterDevice, ...]:
    """The character devices that match patterns, each once."""
    paths = dict.fromkeys(path for place in places for path in devices.glob(*place))
    found = ((path, devices.follow(path)) for path in paths)
    there = (path for path, entry in found if entry is not None and entry[1].is_character_device)
    return _nodes(devices, tuple(there))


def _nodes(devices: RootedFiles, paths: tuple[str, ...]) -> tuple[CharacterDevice, ...]:
    nodes: list[CharacterDevice] = []
    for path in paths:
        found = devices.follow(path)
        if found is None or not found[1].is_character_device:
            _log.warning("no character device %s below %s; it is left out", path, devices)
            continue
        source, entry = found
        mode = entry.mode & _PERMISSIONS
        nodes.append(CharacterDevice(path, source, entry.major, entry.minor, mode, entry.gid))
    return tuple(nodes)


def _by_path(
    devices: RootedFiles, gpu: Gpu, nodes: tuple[CharacterDevice, ...]
) -> list[tuple[str, str]]:
    ours = {node.source for node in nodes}
    links: list[tuple[str, str]] = []
    for suffix in ("card", "render"):
        path = f"/dev/dri/by-path/pci-{gpu.pci_address}-{suffix}"
        target = devices.readlink(path)
        if target is not None and devices.resolve(path) in ours:
            links.append((path, target))
    return links
