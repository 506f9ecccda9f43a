"""The pool that is published for an inventory.

Source: docs/reference/gpu-devices.md, "What each GPU offers", "Slices of a node".
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from nvdra_api import names
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import DeviceName, GpuUUID, NodeName, PoolName
from nvdra_api.resource.slices import Device, DeviceTaint
from nvdra_runtime.resourceslices.pool import Pool, Slice

from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.publishing import attributes

Taints = Mapping[GpuUUID, Sequence[DeviceTaint]]
"""The taints of GPUs that have some."""

_DEVICES_PER_SLICE = 64
"""The API server's limit for devices with taints, counters or lists; for others it is 128. The
lower limit is always used, so that a taint does not move devices between slices."""


def pool(
    inventory: Inventory,
    gates: FeatureGates,
    node: NodeName,
    awaited: Iterable[Device] = (),
    taints: Taints = MappingProxyType({}),
) -> Pool:
    """The pool, named after the node, with its GPUs in the order of their PCI addresses.

    A pool without GPUs has one empty slice. A GPU in MIG mode is not published as a whole.

    Args:
        inventory: The GPUs that work.
        gates: Which forms of attributes are published.
        node: The node's name.
        awaited: Devices that stay as they were published, from `still_awaited`.
        taints: The taints of GPUs that are not well.
    """
    devices = [_whole_gpu(gpu, gates) for gpu in inventory.gpus if not gpu.is_mig_enabled]
    devices = [_tainted(each, taints) for each in sorted([*devices, *awaited], key=_place)]
    slices = tuple(Slice(devices=part) for part in _chunks(devices)) or (Slice(),)
    return Pool(PoolName(node), slices)


def still_awaited(
    published: Iterable[Device],
    inventory: Inventory,
    awaited: Collection[DeviceName | None],
    faulty: Collection[str],
) -> list[Device]:
    """The devices that were published and may be GPUs that have not described themselves yet.

    Args:
        published: The devices that were published before.
        inventory: The GPUs that have described themselves. One of them may have had another name.
        awaited: The GPUs that have not; None for one whose name is not known either.
        faulty: Devices that are to be withdrawn.
    """
    uuids = {gpu.uuid for gpu in inventory.gpus}
    return [
        device
        for device in published
        if (device.name in awaited or None in awaited)
        and device.name not in inventory.by_name
        and device.name not in faulty
        and _text(device, "uuid") not in uuids
    ]


def _tainted(device: Device, taints: Taints) -> Device:
    found = tuple(taints.get(GpuUUID(_text(device, "uuid")), ()))
    return device if device.taints == found else device.model_copy(update={"taints": found})


def _place(device: Device) -> str:
    return _text(device, names.ATTRIBUTE_PCI_BUS_ID)


def _text(device: Device, attribute: str) -> str:
    found = device.attributes.get(attribute)
    return "" if found is None else found.string_value or ""


def _whole_gpu(gpu: Gpu, gates: FeatureGates) -> Device:
    return Device(
        name=gpu.name,
        attributes=attributes.whole_gpu(
            gpu, numa_as_list=gates.is_enabled(Feature.LIST_ATTRIBUTES)
        ),
        capacity=attributes.whole_gpu_capacity(gpu),
    )


def _chunks(devices: list[Device]) -> Iterator[tuple[Device, ...]]:
    for start in range(0, len(devices), _DEVICES_PER_SLICE):
        yield tuple(devices[start : start + _DEVICES_PER_SLICE])
