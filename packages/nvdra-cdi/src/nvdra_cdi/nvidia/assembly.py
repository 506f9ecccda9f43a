# SPDX-License-Identifier: Apache-2.0
"""Assemble a spec from common edits and devices (docs/reference/cdi.md §18).

The spec is deduplicated, common edits are removed from the devices, nodes and mounts are sorted so
that a parent is mounted before its children, and the version is the lowest possible one.
"""

from collections.abc import Iterable

from nvdra_cdi import version
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_cdi.transforms import deduplicate, order, simplify


def assemble(kind: str, common: ContainerEdits, devices: Iterable[Device]) -> Spec:
    """The spec of these devices.

    Args:
        kind: `vendor/class`.
        common: The edits for every device of the spec.
        devices: The devices in any order. Their names must differ.
    """
    spec = Spec(kind=kind, devices=tuple(devices), container_edits=common)
    return version.with_minimum(order(simplify(deduplicate(spec))))
