"""The pool that is published for an inventory.

Source: docs/reference/gpu-devices.md, "What each GPU offers", "Slices of a node".
"""

from collections.abc import Iterator, Sequence

from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import NodeName, PoolName
from nvdra_api.resource.slices import Device
from nvdra_runtime.resourceslices.pool import Pool, Slice

from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.publishing import attributes

_DEVICES_PER_SLICE = 64
"""The API server's limit for devices with taints, counters or lists; for others it is 128. The
lower limit is always used, so that a taint does not move devices between slices."""


def pool(inventory: Inventory, gates: FeatureGates, node: NodeName) -> Pool:
    """The pool, named after the node, with its GPUs in the order of their PCI addresses.

    A pool without GPUs has one empty slice. A GPU in MIG mode is not published as a whole.
    """
    devices = [_whole_gpu(gpu, gates) for gpu in inventory.gpus if not gpu.is_mig_enabled]
    slices = tuple(Slice(devices=part) for part in _chunks(devices)) or (Slice(),)
    return Pool(PoolName(node), slices)


def _whole_gpu(gpu: Gpu, gates: FeatureGates) -> Device:
    return Device(
        name=gpu.name,
        attributes=attributes.whole_gpu(
            gpu, numa_as_list=gates.is_enabled(Feature.LIST_ATTRIBUTES)
        ),
        capacity=attributes.whole_gpu_capacity(gpu),
    )


def _chunks(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    for start in range(0, len(devices), _DEVICES_PER_SLICE):
        yield tuple(devices[start : start + _DEVICES_PER_SLICE])
