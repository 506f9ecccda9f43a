"""One spec out of common edits and devices (spec/cdi.md §18).

Repetitions go, what is common goes from the devices, nodes and mounts are sorted so that a parent
is mounted before what lies in it, and the version is the lowest that the result needs.
"""

from collections.abc import Iterable

from nvdra_cdi import version
from nvdra_cdi.model import ContainerEdits, Device, Spec
from nvdra_cdi.transforms import deduplicate, order, simplify


def assemble(kind: str, common: ContainerEdits, devices: Iterable[Device]) -> Spec:
    """The spec of these devices.

    Args:
        kind: `vendor/class`.
        common: What every device of the spec needs.
        devices: In any order; their names must differ.
    """
    spec = Spec(kind=kind, devices=tuple(devices), container_edits=common)
    return version.with_minimum(order(simplify(deduplicate(spec))))
