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

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.inventory import Device as GpuOrMig
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.publishing import attributes

Taints = Mapping[GpuUUID, Sequence[DeviceTaint]]
"""The taints of GPUs that have some. All MIG devices of such a GPU get them."""

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
    """The pool, named after the node, with its devices in the order of PCI addresses and names.

    A pool without devices has one empty slice. A GPU in MIG mode is not published, but its MIG
    devices are.

    Args:
        inventory: The GPUs that work.
        gates: Which forms of attributes are published.
        node: The node's name.
        awaited: Devices that stay as they were published, from `still_awaited`.
        taints: The taints of GPUs that are not well.
    """
    as_list = gates.is_enabled(Feature.LIST_ATTRIBUTES)
    devices = [_published(device, inventory, numa_as_list=as_list) for device in inventory.devices]
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
    found = []
    for device in published:
        gpu = device_names.parent_name(device.name)
        is_awaited = gpu in awaited or None in awaited
        is_described = gpu in inventory.by_name or _gpu_uuid(device) in uuids
        if is_awaited and not is_described and not {gpu, device.name} & set(faulty):
            found.append(device)
    return found


def _tainted(device: Device, taints: Taints) -> Device:
    found = tuple(taints.get(_gpu_uuid(device), ()))
    return device if device.taints == found else device.model_copy(update={"taints": found})


def _place(device: Device) -> tuple[str, str]:
    return _text(device, names.ATTRIBUTE_PCI_BUS_ID), device.name


def _gpu_uuid(device: Device) -> GpuUUID:
    """The UUID of the GPU that the device is, or is a part of."""
    return GpuUUID(_text(device, "parentUUID") or _text(device, "uuid"))


def _text(device: Device, attribute: str) -> str:
    found = device.attributes.get(attribute)
    return "" if found is None else found.string_value or ""


def _published(device: GpuOrMig, inventory: Inventory, *, numa_as_list: bool) -> Device:
    if isinstance(device, Gpu):
        return Device(
            name=device.name,
            attributes=attributes.whole_gpu(device, numa_as_list=numa_as_list),
            capacity=attributes.whole_gpu_capacity(device),
        )
    parent = inventory.gpu_of(device)
    found = attributes.mig_device(device, parent, numa_as_list=numa_as_list)
    return Device(
        name=device.name, attributes=found, capacity=attributes.mig_capacity(device, len(found))
    )


def _chunks(devices: list[Device]) -> Iterator[tuple[Device, ...]]:
    for start in range(0, len(devices), _DEVICES_PER_SLICE):
        yield tuple(devices[start : start + _DEVICES_PER_SLICE])
