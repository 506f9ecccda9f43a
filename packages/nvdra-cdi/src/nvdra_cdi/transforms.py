"""Documents rewritten: other roots, no repetitions, a fixed order, a device that is all of them.

Pure functions from a document to another (spec/cdi.md §§18, 19). None touches the version: what
comes out may need another, see `version.with_minimum`.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Literal, TypeVar

from nvdra_cdi import paths
from nvdra_cdi.errors import TransformError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec

_T = TypeVar("_T", bound=Hashable)
_Rename = Callable[[str], str]

_IN_CONTAINER = ("createContainer", "startContainer")  # their arguments name its paths


def deduplicate(spec: Spec) -> Spec:
    """Without repetitions inside one set of edits; groups also sorted."""
    return _edit(spec, _once_each)


def simplify(spec: Spec) -> Spec:
    """Without what devices repeat of the spec's own edits.

    A device of which nothing would be left keeps its edits: it must have one.
    """
    return replace(
        spec,
        devices=tuple(
            replace(device, container_edits=_without(spec.container_edits, device.container_edits))
            for device in spec.devices
        ),
    )


def order(spec: Spec) -> Spec:
    """Nodes and mounts with parents before what lies in them, devices by name."""
    ordered = _edit(spec, _in_order)
    return replace(ordered, devices=tuple(sorted(ordered.devices, key=_name)))


def merge(spec: Spec, name: str = "all", *, skip_existing: bool = False) -> Spec:
    """With one more device that stands for all the others; then tidy again.

    Args:
        spec: The document.
        name: Of the new device.
        skip_existing: Where the name is taken, leave the document as it is.

    Raises:
        TransformError: The name is taken.
    """
    if any(device.name == name for device in spec.devices):
        if skip_existing:
            return spec
        raise TransformError(f'there is a device "{name}" already: choose another name')
    edits = sum((device.container_edits for device in spec.devices), ContainerEdits())
    merged = replace(spec, devices=(*spec.devices, Device(name, edits)))
    return order(simplify(deduplicate(merged)))


def reroot(
    spec: Spec, source: str, target: str, relative_to: Literal["host", "container"] = "host"
) -> Spec:
    """With every path below `source` at the same place below `target`.

    Args:
        spec: The document.
        source: The root to leave.
        target: The root to enter.
        relative_to: Whether the paths are the host's or the container's. An argument of a hook is a
            path of the container when the hook runs in its namespaces.
    """
    source, target = paths.clean(source), paths.clean(target)
    if source == target:
        return spec

    def rename(path: str) -> str:
        inside = _inside(path, source)
        return path if inside is None else paths.clean(f"{target}/{inside}")

    on_host = relative_to == "host"
    return _edit(
        spec,
        lambda edits: replace(
            edits,
            device_nodes=tuple(_moved_node(node, rename, on_host) for node in edits.device_nodes),
            mounts=tuple(_moved_mount(mount, rename, on_host) for mount in edits.mounts),
            hooks=tuple(_moved_hook(hook, rename, on_host) for hook in edits.hooks),
        ),
    )


def _inside(path: str, root: str) -> str | None:
    """The rest of a path below a root; None when it is not below it."""
    if path == root:
        return ""
    prefix = root if root.endswith("/") else f"{root}/"
    return path.removeprefix(prefix) if path.startswith(prefix) else None


def _moved_node(node: DeviceNode, rename: _Rename, on_host: bool) -> DeviceNode:
    if not on_host:
        return replace(node, path=rename(node.path))
    host_path = rename(node.host_path or node.path)
    return replace(node, host_path="" if host_path == node.path else host_path)


def _moved_mount(mount: Mount, rename: _Rename, on_host: bool) -> Mount:
    if on_host:
        return replace(mount, host_path=rename(mount.host_path))
    return replace(mount, container_path=rename(mount.container_path))


def _moved_hook(hook: Hook, rename: _Rename, on_host: bool) -> Hook:
    path_is_hosts = hook.hook_name != "startContainer"
    args_are_hosts = hook.hook_name not in _IN_CONTAINER
    return replace(
        hook,
        path=rename(hook.path) if path_is_hosts == on_host else hook.path,
        args=tuple(
            "::".join(map(rename, arg.split("::", 1))) if args_are_hosts == on_host else arg
            for arg in hook.args
        ),
    )


def _edit(spec: Spec, edit: Callable[[ContainerEdits], ContainerEdits]) -> Spec:
    return replace(
        spec,
        container_edits=edit(spec.container_edits),
        devices=tuple(
            replace(device, container_edits=edit(device.container_edits)) for device in spec.devices
        ),
    )


def _once_each(edits: ContainerEdits) -> ContainerEdits:
    return replace(
        edits,
        env=_once(edits.env),
        device_nodes=_once(edits.device_nodes),
        net_devices=_once(edits.net_devices),
        hooks=_once(edits.hooks),
        mounts=_once(edits.mounts),
        additional_gids=tuple(sorted(set(edits.additional_gids))),
    )


def _without(common: ContainerEdits, edits: ContainerEdits) -> ContainerEdits:
    own = replace(
        edits,
        env=_minus(edits.env, common.env),
        device_nodes=_minus(edits.device_nodes, common.device_nodes),
        hooks=_minus(edits.hooks, common.hooks),
        mounts=_minus(edits.mounts, common.mounts),
    )
    return own or edits


def _in_order(edits: ContainerEdits) -> ContainerEdits:
    return replace(
        edits,
        device_nodes=tuple(sorted(edits.device_nodes, key=lambda node: _place(node.path))),
        mounts=tuple(sorted(edits.mounts, key=lambda mount: _place(mount.container_path))),
    )


def _place(path: str) -> tuple[int, bytes]:
    return paths.depth(path), path.encode()


def _name(device: Device) -> bytes:
    return device.name.encode()


def _once(items: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def _minus(items: tuple[_T, ...], others: tuple[_T, ...]) -> tuple[_T, ...]:
    there = set(others)
    return tuple(item for item in items if item not in there)
