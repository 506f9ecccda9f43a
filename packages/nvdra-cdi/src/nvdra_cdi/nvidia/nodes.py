"""Find the driver's device nodes, through `Host` only (spec/cdi.md §§13.6, 14.1, 16.1, 17).

What is no character device is left out with a warning; a node that a container cannot do without
raises `DiscoveryError`.
"""

import logging

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.host import Host
from nvdra_cdi.nvidia.facts import GpuNodes, Node
from nvdra_cdi.nvidia.options import Gpu

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
_PERMISSIONS = 0o7777

_log = logging.getLogger(__name__)


def control_nodes(devices: Host) -> tuple[Node, ...]:
    """The nodes that every container with a GPU gets, those that exist."""
    return _nodes(devices, _CONTROL_NODES)


def gpu_nodes(devices: Host, sysfs: Host, board: Gpu) -> GpuNodes:
    """A GPU's own node and its DRM nodes, with the links by which DRM clients find them.

    Raises:
        DiscoveryError: The GPU's own node is not there.
    """
    own = gpu_node(devices, board)
    drm = sysfs.names(f"/bus/pci/devices/{board.pci_address}/drm")
    wanted = [f"/dev/dri/{name}" for name in drm if name.startswith(("card", "renderD"))]
    nodes = (own, *_nodes(devices, tuple(wanted)))
    return GpuNodes(nodes, tuple(_by_path(devices, board, nodes)))


def gpu_node(devices: Host, board: Gpu) -> Node:
    """A GPU's own node.

    Raises:
        DiscoveryError: It is not there.
    """
    for node in _nodes(devices, (board.node,)):
        return node
    raise DiscoveryError(f"no device node {board.node} below {devices} for {board.uuid}")


def imex_channels(devices: Host) -> list[int]:
    """The numbers of the IMEX channels that have a node, ascending."""
    names = (path.rpartition("/channel")[2] for path in devices.glob(_CHANNELS, "channel*"))
    numbers = sorted(int(name) for name in names if name.isdigit() and name.isascii())
    return [number for number in numbers if imex_channel(devices, number) is not None]


def imex_channel(devices: Host, number: int) -> Node | None:
    """The node of an IMEX channel, if there is one."""
    return next(iter(_nodes(devices, (channel_path(number),))), None)


def channel_path(number: int) -> str:
    """Where the container gets an IMEX channel."""
    return f"{_CHANNELS}/channel{number}"


def management_nodes(devices: Host) -> tuple[Node, ...]:
    """Every node of the driver's, but for those of other subsystems that share its name."""
    paths = [path for place in _MANAGEMENT_NODES for path in devices.glob(*place)]
    wanted = (path for path in paths if not path.rpartition("/")[2].startswith(_NOT_FOR_MANAGEMENT))
    found = ((path, devices.follow(path)) for path in wanted)
    there = (path for path, entry in found if entry is not None and entry[1].is_character_device)
    return _nodes(devices, tuple(there))


def _nodes(devices: Host, paths: tuple[str, ...]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for path in paths:
        found = devices.follow(path)
        if found is None or not found[1].is_character_device:
            _log.warning("no character device %s below %s, left out", path, devices)
            continue
        source, entry = found
        mode = entry.mode & _PERMISSIONS
        nodes.append(Node(path, source, entry.major, entry.minor, mode, entry.gid))
    return tuple(nodes)


def _by_path(devices: Host, board: Gpu, nodes: tuple[Node, ...]) -> list[tuple[str, str]]:
    ours = {node.source for node in nodes}
    links: list[tuple[str, str]] = []
    for suffix in ("card", "render"):
        path = f"/dev/dri/by-path/pci-{board.pci_address}-{suffix}"
        target = devices.readlink(path)
        if target is not None and devices.resolve(path) in ours:
            links.append((path, target))
    return links
