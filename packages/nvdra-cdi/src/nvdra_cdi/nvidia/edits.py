"""Found facts to container edits (spec/cdi.md §§13.6, 14, 16.1).

A path inside a root is the path in the container; on the host it lies below the target root. So no
document is rewritten from one root to another: it is written for the host in the first place.
"""

import posixpath
from collections.abc import Iterable, Sequence

from nvdra_cdi.model import ContainerEdits, DeviceNode, Mount
from nvdra_cdi.nvidia import hooks
from nvdra_cdi.nvidia.facts import Driver, File, GpuNodes, Node
from nvdra_cdi.nvidia.options import Gpu, Options, joined

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_NODE_FOLDERS = ("/dev/dri", "/dev/nvidia-caps")
_WORLD_READ_WRITE = 0o006


def common(options: Options, driver: Driver, control_nodes: Iterable[Node]) -> ContainerEdits:
    """What every container with a GPU needs, whichever GPU it is."""
    return (
        _nodes(options, control_nodes)
        + _graphics(options, driver)
        + _driver(options, driver)
        + ContainerEdits(hooks=hooks.update_application_profile(options))
    )


def gpu(options: Options, board: Gpu, found: GpuNodes) -> ContainerEdits:
    """What a container needs to use this GPU."""
    folders = {posixpath.dirname(node.path) for node in found.nodes}
    links = (f"{target}::{path}" for path, target in found.by_path)
    return _nodes(options, found.nodes) + ContainerEdits(
        hooks=(
            *hooks.create_symlinks(options, links),
            *hooks.chmod(options, (folder for folder in _NODE_FOLDERS if folder in folders)),
            *hooks.apply_cuda_memory_limits(options, board.uuid),
        )
    )


def _graphics(options: Options, driver: Driver) -> ContainerEdits:
    # The allocator is a driver library too, and only its link comes from here.
    allocator = f"libnvidia-allocator.so.{driver.version}"
    mounted = [
        file for file in driver.graphics_libraries if posixpath.basename(file.path) != allocator
    ]
    return ContainerEdits(
        hooks=hooks.create_symlinks(options, hooks.graphics_links(driver)),
        mounts=_mounts(options, mounted, _FILE),
    )


def _driver(options: Options, driver: Driver) -> ContainerEdits:
    libraries = [File(library.path, library.path) for library in driver.libraries]
    return ContainerEdits(
        env=(
            f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(driver.directories)}",
            "NVIDIA_VISIBLE_DEVICES=void",  # or the NVIDIA runtime injects GPUs a second time
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
            *_mounts(options, driver.sockets, _SOCKET),
            *_mounts(options, driver.files, _FILE),
        ),
    )


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
        additional_gids=tuple(node.gid for node in found if _needs_its_group(node)),
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


def _needs_its_group(node: Node) -> bool:
    is_open_to_all = node.mode & _WORLD_READ_WRITE == _WORLD_READ_WRITE
    return node.gid != 0 and node.mode != 0 and not is_open_to_all
