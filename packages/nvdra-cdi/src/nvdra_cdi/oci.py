# SPDX-License-Identifier: Apache-2.0
"""Inject devices into a container's OCI runtime specification, as a container runtime does.

Values that a device node leaves out are looked up on the host at each call. The order and meaning
of the edits are those of the reference library (docs/reference/cdi.md §8).
"""

import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nvdra_cdi import runtime_spec
from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import DiscoveryError, InjectionError
from nvdra_cdi.model import ContainerEdits, DeviceNode
from nvdra_cdi.rooted_files import FileInfo, RootedFiles

_THIS_HOST = RootedFiles()
_FIFO = "p"


def inject(
    config: Mapping[str, Any], cache: Cache, names: Sequence[str], host: RootedFiles = _THIS_HOST
) -> dict[str, Any]:
    """The container's configuration with these devices.

    Args:
        config: An OCI runtime specification. It is not modified.
        cache: The cache that defines the devices.
        names: Qualified names. A name that appears twice is applied twice.
        host: The files of the host, to look up device nodes.

    Raises:
        UnresolvedDevicesError: Some names are not defined. The error contains all of them.
        InjectionError: A device node does not exist on the host or has another type, or `config` is
            not an OCI runtime specification.
    """
    return apply_edits(config, cache.resolve(names), host)


def apply_edits(
    config: Mapping[str, Any], edits: ContainerEdits, host: RootedFiles = _THIS_HOST
) -> dict[str, Any]:
    """The container's configuration with these edits; see `inject`."""
    nodes = tuple(_completed_node(node, host) for node in edits.device_nodes)
    return runtime_spec.with_edits(config, replace(edits, device_nodes=nodes))


def _completed_node(node: DeviceNode, host: RootedFiles) -> DeviceNode:
    """The node with the missing values looked up on the host.

    A node with a type and a number need not exist on the host, because the runtime creates it. In
    this case, only the permissions are taken from the host.
    """
    is_complete = bool(node.type) and (node.major != 0 or node.type == _FIFO)
    path = node.host_path or node.path
    try:
        kind, entry = _inspect_node(path, host)
    except InjectionError:
        if is_complete:
            return node
        raise
    mode = stat.S_IMODE(entry.mode) if node.file_mode is None else node.file_mode
    if is_complete:
        return replace(node, file_mode=mode)
    if node.type not in ("", kind):
        raise InjectionError(
            f'device node {node.path} has type "{node.type}", but {path} on the host has "{kind}"'
        )
    if kind == _FIFO or node.major:
        return replace(node, type=kind, file_mode=mode)
    return replace(node, type=kind, file_mode=mode, major=entry.major, minor=entry.minor)


def _inspect_node(path: str, host: RootedFiles) -> tuple[str, FileInfo]:
    """The type and file of a device node. A link is not followed, and is not a device node."""
    directory, slash, name = path.rpartition("/")
    if not path.startswith("/"):
        raise InjectionError(f"device node {path}: the path on the host must be absolute")
    try:
        resolved = host.resolve(directory or slash)
        entry = host.lstat(f"{(resolved or '').rstrip('/')}/{name}") if resolved else None
    except DiscoveryError as error:
        raise InjectionError(f"device node {path}: {error}") from error
    if entry is None:
        raise InjectionError(f"device node {path} does not exist on the host")
    kinds = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: _FIFO}
    kind = kinds.get(stat.S_IFMT(entry.mode))
    if kind is None:
        raise InjectionError(f"{path} on the host is not a device node")
    return kind, entry
