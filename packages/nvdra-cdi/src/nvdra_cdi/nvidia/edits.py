# SPDX-License-Identifier: Apache-2.0
"""Create container edits from discovered facts (docs/reference/cdi.md §§13.6, 14, 16, 17).

A path within a root is the path in the container; its path on the host is below the target root.
The edits are thus created with paths of the host, and need not be rerooted.
"""

import posixpath
from collections.abc import Iterable, Sequence

from nvdra_cdi.model import ContainerEdits, DeviceNode, Hook, Mount
from nvdra_cdi.nvidia import hooks
from nvdra_cdi.nvidia.facts import Capability, CharacterDevice, Driver, File, GpuDeviceNodes
from nvdra_cdi.nvidia.options import Feature, Gpu, HookName, Options, join_root

_FILE_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_MOUNT_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_DEVICE_FOLDERS = ("/dev/dri", "/dev/nvidia-caps")
_WORLD_READ_WRITE = 0o006
_VOID_VISIBLE_DEVICES = ("NVIDIA_VISIBLE_DEVICES=void",)
"""Without this variable, the NVIDIA runtime would inject GPUs a second time."""


def common(
    options: Options, driver: Driver, control_nodes: Iterable[CharacterDevice]
) -> ContainerEdits:
    """The edits for every container with a GPU."""
    return (
        _nodes(options, control_nodes)
        + _graphics(options, driver)
        + _driver(options, driver)
        + ContainerEdits(hooks=hooks.update_application_profile(options))
    )


def ipc(options: Options, sockets: tuple[File, ...], mps_pipe: File | None) -> ContainerEdits:
    """The part of the common edits that comes and goes with the driver's services."""
    return ContainerEdits(
        mounts=_mounts(options, _ipc(options, sockets, mps_pipe), _SOCKET_MOUNT_OPTIONS)
    )


def imex() -> ContainerEdits:
    """The edits for every container with an IMEX channel."""
    return ContainerEdits(env=_VOID_VISIBLE_DEVICES)


def imex_channel(options: Options, node: CharacterDevice) -> ContainerEdits:
    """The edits for an IMEX channel. As with the toolkit, the runtime finds its numbers.

    Source: docs/reference/cdi.md §17.1.
    """
    host_path = join_root(options.target_dev_root, node.source)
    return ContainerEdits(device_nodes=(DeviceNode(path=node.path, host_path=host_path, type="c"),))


def management_common(options: Options, driver: Driver) -> ContainerEdits:
    """The driver's files, for a container that manages the node (docs/reference/cdi.md §17.2)."""
    off = options.disabled_hooks | {HookName.DISABLE_DEVICE_NODE_MODIFICATION}
    return _driver(options.model_copy(update={"disabled_hooks": off}), driver)


def management(options: Options, nodes: Sequence[CharacterDevice]) -> ContainerEdits:
    """All device nodes of the driver, for a container that manages the node.

    Source: docs/reference/cdi.md §17.2.
    """
    return _nodes(options, nodes) + ContainerEdits(hooks=_folder_permissions(options, nodes))


def gated_common() -> ContainerEdits:
    """The edits for every container with devices of another driver."""
    return ContainerEdits(env=_VOID_VISIBLE_DEVICES)


def gated(
    options: Options, nodes: Sequence[CharacterDevice], files: Sequence[File] = ()
) -> ContainerEdits:
    """The devices of another driver (docs/reference/cdi.md §17.3)."""
    return _nodes(options, nodes) + ContainerEdits(
        mounts=_mounts(options, files, _FILE_MOUNT_OPTIONS)
    )


def mig(
    options: Options, found: GpuDeviceNodes, capabilities: Iterable[Capability]
) -> ContainerEdits:
    """The edits for a MIG device: the nodes of its GPU and of its capabilities."""
    return (
        _nodes(options, found.nodes)
        + ContainerEdits(device_nodes=tuple(_capability(capability) for capability in capabilities))
        + ContainerEdits(hooks=_links(options, found))
    )


def gpu(options: Options, gpu: Gpu, found: GpuDeviceNodes) -> ContainerEdits:
    """The edits for a whole GPU."""
    return _nodes(options, found.nodes) + ContainerEdits(
        hooks=(
            *_links(options, found),
            *_folder_permissions(options, found.nodes),
            *hooks.apply_cuda_memory_limits(options, gpu.uuid),
        )
    )


def _links(options: Options, found: GpuDeviceNodes) -> tuple[Hook, ...]:
    links = (f"{target}::{path}" for path, target in found.by_path)
    return hooks.create_symlinks(options, links)


def _folder_permissions(options: Options, nodes: Iterable[CharacterDevice]) -> tuple[Hook, ...]:
    folders = {posixpath.dirname(node.path) for node in nodes}
    return hooks.chmod(options, (folder for folder in _DEVICE_FOLDERS if folder in folders))


def _graphics(options: Options, driver: Driver) -> ContainerEdits:
    # The allocator is also one of the driver's libraries. Only its link is added here.
    allocator = f"libnvidia-allocator.so.{driver.version}"
    mounted = [
        file for file in driver.graphics_libraries if posixpath.basename(file.path) != allocator
    ]
    return ContainerEdits(
        hooks=hooks.create_symlinks(options, hooks.graphics_links(driver)),
        mounts=_mounts(options, (*mounted, *driver.graphics_files), _FILE_MOUNT_OPTIONS),
    )


def _driver(options: Options, driver: Driver) -> ContainerEdits:
    libraries = [File(library.path, library.path) for library in driver.libraries]
    return ContainerEdits(
        env=(
            f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(driver.directories)}",
            *_VOID_VISIBLE_DEVICES,
        ),
        # Links are created before the linker's cache is updated: ldconfig must see them.
        hooks=(
            *hooks.create_symlinks(options, hooks.driver_links(driver.libraries)),
            *hooks.enable_cuda_compat(options, driver.version),
            *hooks.update_ldcache(options, hooks.library_folders(driver.libraries)),
            *hooks.disable_device_node_modification(options),
        ),
        mounts=(
            *_mounts(options, libraries, _FILE_MOUNT_OPTIONS),
            *ipc(options, driver.sockets, driver.mps_pipe).mounts,
            *_mounts(options, driver.files, _FILE_MOUNT_OPTIONS),
        ),
    )


def _ipc(options: Options, sockets: tuple[File, ...], mps_pipe: File | None) -> tuple[File, ...]:
    if Feature.NO_IPC in options.features:
        return ()
    pipe = mps_pipe if options.mps_pipe == "auto" else None
    return (*sockets, *([pipe] if pipe else []))


def _mounts(
    options: Options, files: Sequence[File], mount_options: tuple[str, ...]
) -> tuple[Mount, ...]:
    return tuple(
        Mount(
            host_path=join_root(options.target_driver_root, file.source),
            container_path=file.path,
            options=mount_options,
        )
        for file in files
    )


def _nodes(options: Options, nodes: Iterable[CharacterDevice]) -> ContainerEdits:
    found = tuple(nodes)
    return ContainerEdits(
        device_nodes=tuple(_node(options, node) for node in found),
        additional_gids=tuple(node.gid for node in found if _needs_group(options, node)),
    )


def _capability(found: Capability) -> DeviceNode:
    """The device node with its numbers, so that the runtime creates it if the host has none."""
    return DeviceNode(
        path=found.path, type="c", major=found.major, minor=found.minor, file_mode=found.mode
    )


def _node(options: Options, node: CharacterDevice) -> DeviceNode:
    host_path = join_root(options.target_dev_root, node.source)
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


def _needs_group(options: Options, node: CharacterDevice) -> bool:
    if Feature.NO_ADDITIONAL_GIDS in options.features:
        return False
    is_open_to_all = node.mode & _WORLD_READ_WRITE == _WORLD_READ_WRITE
    return node.gid != 0 and node.mode != 0 and not is_open_to_all
