"""One spec out of common edits and devices (spec/cdi.md §18).

Repetitions go, what is common goes from the devices, nodes and mounts are sorted so that a parent
is mounted before what lies in it, and the version is the lowest that the result needs.
"""

import posixpath
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import TypeVar

from nvdra_cdi import version
from nvdra_cdi.model import ContainerEdits, Device, Spec

_T = TypeVar("_T", bound=Hashable)


def assemble(kind: str, common: ContainerEdits, devices: Iterable[Device]) -> Spec:
    """The spec of these devices.

    Args:
        kind: `vendor/class`.
        common: What every device of the spec needs.
        devices: In any order; their names must differ.
    """
    common = _tidy(common)
    own = [
        replace(device, container_edits=_without(common, _tidy(device.container_edits)))
        for device in devices
    ]
    spec = Spec(
        kind=kind,
        devices=tuple(sorted(own, key=lambda device: device.name.encode())),
        container_edits=common,
    )
    return replace(spec, version=version.minimum_required(spec))


def _tidy(edits: ContainerEdits) -> ContainerEdits:
    nodes, mounts = _once(edits.device_nodes), _once(edits.mounts)
    return replace(
        edits,
        env=_once(edits.env),
        device_nodes=tuple(sorted(nodes, key=lambda node: _depth_first(node.path))),
        net_devices=_once(edits.net_devices),
        hooks=_once(edits.hooks),
        mounts=tuple(sorted(mounts, key=lambda mount: _depth_first(mount.container_path))),
        additional_gids=tuple(sorted(set(edits.additional_gids))),
    )


def _without(common: ContainerEdits, edits: ContainerEdits) -> ContainerEdits:
    """The edits less those in common, unless nothing would be left: a device must have an edit."""
    own = replace(
        edits,
        env=_minus(edits.env, common.env),
        device_nodes=_minus(edits.device_nodes, common.device_nodes),
        hooks=_minus(edits.hooks, common.hooks),
        mounts=_minus(edits.mounts, common.mounts),
    )
    return own or edits


def _once(items: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def _minus(items: tuple[_T, ...], others: tuple[_T, ...]) -> tuple[_T, ...]:
    there = set(others)
    return tuple(item for item in items if item not in there)


def _depth_first(path: str) -> tuple[int, bytes]:
    return posixpath.normpath(path).count("/"), path.encode()
