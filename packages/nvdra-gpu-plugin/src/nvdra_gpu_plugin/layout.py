"""Inventory and gates → the pool we publish (spec/gpu-devices.md §§6.5, 16)."""

from collections.abc import Iterator, Sequence

from nvdra_api.types.gates import Feature, Gates
from nvdra_api.types.ids import NodeName, PoolName
from nvdra_api.types.slices import Device, Pool, Slice

from nvdra_gpu_plugin import attributes
from nvdra_gpu_plugin.inventory import Gpu, Inventory

_DEVICES_PER_SLICE = 64
"""What the API server takes of devices with taints, counters or lists (128 of others): one limit
for all, so that a taint never moves devices between slices."""


def pool(inventory: Inventory, gates: Gates, node: NodeName) -> Pool:
    """One pool named after the node, in order of PCI address; an empty slice says "alive, no GPU".

    A GPU in MIG mode is not offered whole.
    """
    offered = [_whole(gpu, gates) for gpu in inventory.gpus if not gpu.is_mig_enabled]
    slices = tuple(Slice(devices=part) for part in _parts(offered)) or (Slice(),)
    return Pool(PoolName(node), slices)


def _whole(gpu: Gpu, gates: Gates) -> Device:
    return Device(
        name=gpu.name,
        attributes=attributes.whole_gpu(gpu, numa_as_list=gates.is_on(Feature.LIST_ATTRIBUTES)),
        capacity=attributes.whole_gpu_capacity(gpu),
    )


def _parts(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    for start in range(0, len(devices), _DEVICES_PER_SLICE):
        yield tuple(devices[start : start + _DEVICES_PER_SLICE])
