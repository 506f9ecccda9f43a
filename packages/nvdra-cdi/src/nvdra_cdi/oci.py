"""Devices injected into a container's OCI runtime specification, as a runtime does it.

What a device node does not say is looked up on the host, each time anew. The order of the edits
and their meaning are those of the reference library (spec/cdi.md §8).
"""

import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nvdra_cdi import runtime_spec
from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import DiscoveryError, InjectionError
from nvdra_cdi.host import Entry, Host
from nvdra_cdi.model import ContainerEdits, DeviceNode

_HERE = Host()
_FIFO = "p"


def inject(
    config: Mapping[str, Any], cache: Cache, names: Sequence[str], host: Host = _HERE
) -> dict[str, Any]:
    """The container's configuration with these devices.

    Args:
        config: An OCI runtime specification; unchanged.
        cache: Where the devices are defined.
        names: Qualified names; one that is named twice is applied twice.
        host: Where device nodes are looked up.

    Raises:
        UnresolvedDevicesError: With every name that nobody defines.
        InjectionError: A device node is not on the host, or of another type; or `config` is no OCI
            runtime specification.
    """
    return apply_edits(config, cache.resolve(names), host)


def apply_edits(
    config: Mapping[str, Any], edits: ContainerEdits, host: Host = _HERE
) -> dict[str, Any]:
    """The container's configuration with these edits; see `inject`."""
    nodes = tuple(_filled(node, host) for node in edits.device_nodes)
    return runtime_spec.edited(config, replace(edits, device_nodes=nodes))


def _filled(node: DeviceNode, host: Host) -> DeviceNode:
    """The node with what it leaves to the host.

    One that has type and number need not be on the host: the runtime makes it. The host then only
    lends its permissions.
    """
    is_complete = bool(node.type) and (node.major != 0 or node.type == _FIFO)
    path = node.host_path or node.path
    try:
        kind, entry = _inspected(path, host)
    except InjectionError:
        if is_complete:
            return node
        raise
    mode = stat.S_IMODE(entry.mode) if node.file_mode is None else node.file_mode
    if is_complete:
        return replace(node, file_mode=mode)
    if node.type not in ("", kind):
        raise InjectionError(
            f'device node {node.path} is of type "{node.type}", but {path} of the host is "{kind}"'
        )
    if kind == _FIFO or node.major:
        return replace(node, type=kind, file_mode=mode)
    return replace(node, type=kind, file_mode=mode, major=entry.major, minor=entry.minor)


def _inspected(path: str, host: Host) -> tuple[str, Entry]:
    """A device node's type and facts; a link is not followed and counts as none."""
    directory, slash, name = path.rpartition("/")
    if not path.startswith("/"):
        raise InjectionError(f"device node {path}: the path on the host must be absolute")
    try:
        resolved = host.resolve(directory or slash)
        entry = host.lstat(f"{(resolved or '').rstrip('/')}/{name}") if resolved else None
    except DiscoveryError as error:
        raise InjectionError(f"device node {path}: {error}") from error
    if entry is None:
        raise InjectionError(f"device node {path} is not on the host")
    kinds = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: _FIFO}
    kind = kinds.get(stat.S_IFMT(entry.mode))
    if kind is None:
        raise InjectionError(f"{path} of the host is no device node")
    return kind, entry
