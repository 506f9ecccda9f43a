# SPDX-License-Identifier: Apache-2.0
"""Transform documents: deduplicate, simplify, sort, add an "all" device, change roots.

Each function returns a new document (docs/reference/cdi.md §§18, 19) with the same version. The new
document may need another version: see `version.with_minimum`.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Literal, TypeVar

from nvdra_cdi import names, paths
from nvdra_cdi.errors import TransformError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec

_T = TypeVar("_T", bound=Hashable)
_Rename = Callable[[str], str]

_CONTAINER_HOOKS = ("createContainer", "startContainer")  # arguments are paths in the container


def deduplicate(spec: Spec) -> Spec:
    """The document without repeated edits. Additional groups are also sorted."""
    return _map_edits(spec, _deduplicated)


def simplify(spec: Spec) -> Spec:
    """The document without the edits of devices that the spec itself also has.

    A device keeps its edits if none would be left, because a device must have an edit.
    """
    return replace(
        spec,
        devices=tuple(
            replace(
                device,
                container_edits=_without_common(spec.container_edits, device.container_edits),
            )
            for device in spec.devices
        ),
    )


def order(spec: Spec) -> Spec:
    """The document with sorted parts: nodes and mounts parents first, devices by name."""
    ordered = _map_edits(spec, _ordered)
    return replace(ordered, devices=tuple(sorted(ordered.devices, key=_name)))


def merge(spec: Spec, name: str = "all", *, skip_existing: bool = False) -> Spec:
    """The document with an additional device that has the edits of all others.

    The result is deduplicated, simplified and sorted.

    Args:
        spec: The document.
        name: The name of the new device.
        skip_existing: Whether to return the document unchanged if the name exists.

    Raises:
        InvalidNameError: The name breaks the rule for names of devices.
        TransformError: The name exists, and `skip_existing` is false.
    """
    names.validate_device(name)
    if any(device.name == name for device in spec.devices):
        if skip_existing:
            return spec
        raise TransformError(f'a device "{name}" already exists: choose another name')
    edits = sum((device.container_edits for device in spec.devices), ContainerEdits())
    merged = replace(spec, devices=(*spec.devices, Device(name, edits)))
    return order(simplify(deduplicate(merged)))


def reroot(
    spec: Spec, source: str, target: str, relative_to: Literal["host", "container"] = "host"
) -> Spec:
    """The document with every path below `source` moved to the same place below `target`.

    Args:
        spec: The document.
        source: The old root.
        target: The new root.
        relative_to: Whether to move the paths on the host or in the container. Arguments of a hook
            are paths in the container if the hook runs in the container's namespaces.
    """
    source, target = paths.clean(source), paths.clean(target)
    if source == target:
        return spec

    def rename(path: str) -> str:
        inside = _relative_path(path, source)
        return path if inside is None else paths.clean(f"{target}/{inside}")

    on_host = relative_to == "host"
    return _map_edits(
        spec,
        lambda edits: replace(
            edits,
            device_nodes=tuple(
                _rerooted_node(node, rename, on_host) for node in edits.device_nodes
            ),
            mounts=tuple(_rerooted_mount(mount, rename, on_host) for mount in edits.mounts),
            hooks=tuple(_rerooted_hook(hook, rename, on_host) for hook in edits.hooks),
        ),
    )


def _relative_path(path: str, root: str) -> str | None:
    """The path relative to a root, or None if the path is not below the root."""
    if path == root:
        return ""
    prefix = root if root.endswith("/") else f"{root}/"
    return path.removeprefix(prefix) if path.startswith(prefix) else None


def _rerooted_node(node: DeviceNode, rename: _Rename, on_host: bool) -> DeviceNode:
    if not on_host:
        return replace(node, path=rename(node.path))
    host_path = rename(node.host_path or node.path)
    return replace(node, host_path="" if host_path == node.path else host_path)


def _rerooted_mount(mount: Mount, rename: _Rename, on_host: bool) -> Mount:
    if on_host:
        return replace(mount, host_path=rename(mount.host_path))
    return replace(mount, container_path=rename(mount.container_path))


def _rerooted_hook(hook: Hook, rename: _Rename, on_host: bool) -> Hook:
    path_is_hosts = hook.hook_name != "startContainer"
    args_are_hosts = hook.hook_name not in _CONTAINER_HOOKS
    return replace(
        hook,
        path=rename(hook.path) if path_is_hosts == on_host else hook.path,
        args=tuple(
            "::".join(map(rename, arg.split("::", 1))) if args_are_hosts == on_host else arg
            for arg in hook.args
        ),
    )


def _map_edits(spec: Spec, edit: Callable[[ContainerEdits], ContainerEdits]) -> Spec:
    return replace(
        spec,
        container_edits=edit(spec.container_edits),
        devices=tuple(
            replace(device, container_edits=edit(device.container_edits)) for device in spec.devices
        ),
    )


def _deduplicated(edits: ContainerEdits) -> ContainerEdits:
    return replace(
        edits,
        env=_unique(edits.env),
        device_nodes=_unique(edits.device_nodes),
        net_devices=_unique(edits.net_devices),
        hooks=_unique(edits.hooks),
        mounts=_unique(edits.mounts),
        additional_gids=tuple(sorted(set(edits.additional_gids))),
    )


def _without_common(common: ContainerEdits, edits: ContainerEdits) -> ContainerEdits:
    own = replace(
        edits,
        env=_difference(edits.env, common.env),
        device_nodes=_difference(edits.device_nodes, common.device_nodes),
        hooks=_difference(edits.hooks, common.hooks),
        mounts=_difference(edits.mounts, common.mounts),
    )
    return own or edits


def _ordered(edits: ContainerEdits) -> ContainerEdits:
    return replace(
        edits,
        device_nodes=tuple(sorted(edits.device_nodes, key=lambda node: _sort_key(node.path))),
        mounts=tuple(sorted(edits.mounts, key=lambda mount: _sort_key(mount.container_path))),
    )


def _sort_key(path: str) -> tuple[int, bytes]:
    return paths.depth(path), path.encode()


def _name(device: Device) -> bytes:
    return device.name.encode()


def _unique(items: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def _difference(items: tuple[_T, ...], others: tuple[_T, ...]) -> tuple[_T, ...]:
    there = set(others)
    return tuple(item for item in items if item not in there)
