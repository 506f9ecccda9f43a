"""Found facts to container edits (spec/cdi.md §§13.6, 14, 16, 17).

A path inside a root is the path in the container; on the host it lies below the target root. So no
document is rewritten from one root to another: it is written for the host in the first place.
"""

import posixpath
from collections.abc import Iterable, Sequence

from nvdra_cdi.model import ContainerEdits, DeviceNode, Hook, Mount
from nvdra_cdi.nvidia import hooks
from nvdra_cdi.nvidia.facts import Capability, Driver, File, GpuNodes, Node
from nvdra_cdi.nvidia.options import Feature, Gpu, HookName, Options, joined

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_NODE_FOLDERS = ("/dev/dri", "/dev/nvidia-caps")
_WORLD_READ_WRITE = 0o006
_ONLY_CDI = ("NVIDIA_VISIBLE_DEVICES=void",)
"""Or the NVIDIA runtime injects GPUs a second time."""


def common(options: Options, driver: Driver, control_nodes: Iterable[Node]) -> ContainerEdits:
    """What every container with a GPU needs, whichever GPU it is."""
    return (
        _nodes(options, control_nodes)
        + _graphics(options, driver)
        + _driver(options, driver)
        + ContainerEdits(hooks=hooks.update_application_profile(options))
    )


def imex() -> ContainerEdits:
    """What every container with an IMEX channel needs."""
    return ContainerEdits(env=_ONLY_CDI)


def imex_channel(options: Options, node: Node) -> ContainerEdits:
    """A channel's node. Its numbers are left to the runtime, as the toolkit does (§17.1)."""
    host_path = joined(options.target_dev_root, node.source)
    return ContainerEdits(device_nodes=(DeviceNode(path=node.path, host_path=host_path, type="c"),))


def management_common(options: Options, driver: Driver) -> ContainerEdits:
    """The driver's files for a container that manages the node (§17.2)."""
    off = options.disabled_hooks | {HookName.DISABLE_DEVICE_NODE_MODIFICATION}
    return _driver(options.model_copy(update={"disabled_hooks": off}), driver)


def management(options: Options, nodes: Sequence[Node]) -> ContainerEdits:
    """Every node of the driver's."""
    return _nodes(options, nodes) + ContainerEdits(hooks=_folder_permissions(options, nodes))


def mig(options: Options, found: GpuNodes, capabilities: Iterable[Capability]) -> ContainerEdits:
    """What a container needs to use a MIG device: its GPU's nodes, and the right to its part."""
    return (
        _nodes(options, found.nodes)
        + ContainerEdits(device_nodes=tuple(_capability(one) for one in capabilities))
        + ContainerEdits(hooks=_links(options, found))
    )


def gpu(options: Options, board: Gpu, found: GpuNodes) -> ContainerEdits:
    """What a container needs to use this GPU."""
    return _nodes(options, found.nodes) + ContainerEdits(
        hooks=(
            *_links(options, found),
            *_folder_permissions(options, found.nodes),
            *hooks.apply_cuda_memory_limits(options, board.uuid),
        )
    )


def _links(options: Options, found: GpuNodes) -> tuple[Hook, ...]:
    links = (f"{target}::{path}" for path, target in found.by_path)
    return hooks.create_symlinks(options, links)


def _folder_permissions(options: Options, nodes: Iterable[Node]) -> tuple[Hook, ...]:
    folders = {posixpath.dirname(node.path) for node in nodes}
    return hooks.chmod(options, (folder for folder in _NODE_FOLDERS if folder in folders))


def _graphics(options: Options, driver: Driver) -> ContainerEdits:
    # The allocator is a driver library too, and only its link comes from here.
    allocator = f"libnvidia-allocator.so.{driver.version}"
    mounted = [
        file for file in driver.graphics_libraries if posixpath.basename(file.path) != allocator
    ]
    return ContainerEdits(
        hooks=hooks.create_symlinks(options, hooks.graphics_links(driver)),
        mounts=_mounts(options, (*mounted, *driver.graphics_files), _FILE),
    )


def _driver(options: Options, driver: Driver) -> ContainerEdits:
    libraries = [File(library.path, library.path) for library in driver.libraries]
    return ContainerEdits(
        env=(
            f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(driver.directories)}",
            *_ONLY_CDI,
        ),
        # Links come before the cache: ldconfig has to see them.
        hooks=(
            *hooks.create_symlinks(options, hooks.driver_links(driver.libraries)),
            *hooks.enable_cuda_compat(options, driver.version),
            *hooks.update_ldcache(options, hooks.library_folders(driver.libraries)),
            *hooks.disable_device_node_modification(options),
        ),
        mounts=(
            *_mounts(options, libraries, _FILE),
            *_mounts(options, _ipc(options, driver), _SOCKET),
            *_mounts(options, driver.files, _FILE),
        ),
    )


def _ipc(options: Options, driver: Driver) -> tuple[File, ...]:
    if Feature.NO_IPC in options.features:
        return ()
    pipe = driver.mps_pipe if options.mps_pipe == "auto" else None
    return (*driver.sockets, *([pipe] if pipe else []))


def _mounts(
    options: Options, files: Sequence[File], mount_options: tuple[str, ...]
) -> tuple[Mount, ...]:
    return tuple(
        Mount(
            host_path=joined(options.target_driver_root, file.source),
            container_path=file.path,
            options=mount_options,
        )
        for file in files
    )


def _nodes(options: Options, nodes: Iterable[Node]) -> ContainerEdits:
    found = tuple(nodes)
    return ContainerEdits(
        device_nodes=tuple(_node(options, node) for node in found),
        additional_gids=tuple(node.gid for node in found if _needs_its_group(options, node)),
    )


def _capability(found: Capability) -> DeviceNode:
    """The runtime makes it by its numbers: the host often has no such node."""
    return DeviceNode(
        path=found.path, type="c", major=found.major, minor=found.minor, file_mode=found.mode
    )


def _node(options: Options, node: Node) -> DeviceNode:
    host_path = joined(options.target_dev_root, node.source)
    return DeviceNode(
        path=node.path,
        host_path=host_path if host_path != node.path else "",
        type="c",
        major=node.major,
        minor=node.minor,
        file_mode=node.mode or None,
        permissions="rwm",
        gid=node.gid or None,
    )


def _needs_its_group(options: Options, node: Node) -> bool:
    if Feature.NO_ADDITIONAL_GIDS in options.features:
        return False
    is_open_to_all = node.mode & _WORLD_READ_WRITE == _WORLD_READ_WRITE
    return node.gid != 0 and node.mode != 0 and not is_open_to_all
