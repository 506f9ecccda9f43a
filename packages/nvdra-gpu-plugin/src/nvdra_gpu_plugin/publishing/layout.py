# SPDX-License-Identifier: Apache-2.0
"""The pool that is published for an inventory.

Source: docs/reference/gpu-devices.md, "What each GPU offers", "Slices of a node".
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType

from nvdra_api import names
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import DeviceName, GpuUUID, NodeName, PoolName, VfioUUID
from nvdra_api.resource.slices import CounterSet, Device, DeviceTaint
from nvdra_runtime.resourceslices import arrangement
from nvdra_runtime.resourceslices.arrangement import DeviceGroup, SliceLimits
from nvdra_runtime.resourceslices.pool import Pool, Slice

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.inventory import Gpu, Inventory
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice
from nvdra_gpu_plugin.publishing import (
    attributes,
    gpu_counters,
    partitions,
    placement_order,
    shares,
)
from nvdra_gpu_plugin.share_policy import SharePolicy

Taints = Mapping[GpuUUID | VfioUUID, Sequence[DeviceTaint]]
"""The taints of GPUs that have some. All MIG devices of such a GPU get them, and its vfio device. A
vfio device may have taints of its own."""

NOTHING = Slice()


def pool(
    inventory: Inventory,
    gates: FeatureGates,
    node: NodeName,
    awaited: Slice = NOTHING,
    taints: Taints = MappingProxyType({}),
    limits: SliceLimits | None = None,
    policy: SharePolicy | None = None,
) -> Pool:
    """The pool, named after the node, with its GPUs in the order of their PCI addresses.

    A pool without devices has one empty slice. A GPU in MIG mode is not published, but its MIG
    devices are; so are the partitions of a GPU that has some, with the counters that they share. A
    GPU and its vfio device share counters, too.

    Args:
        inventory: The GPUs that work.
        gates: Which forms of attributes are published.
        node: The node's name.
        awaited: Devices that stay as they were published, from `still_awaited`.
        taints: The taints of GPUs that are not well.
        limits: What the API server accepts of counters; None if it does not keep them. Without
            them, all partitions would look independent, and none is published. A GPU and its vfio
            device look independent, too: while a claim has one, `gpu_forms` withholds the other.
        policy: How devices are shared; None if each is for one claim at a time.
    """
    if limits is None:
        inventory = inventory.without_partitions()
        awaited = Slice(awaited.devices)
    as_list = gates.is_enabled(Feature.LIST_ATTRIBUTES)
    made = chain.from_iterable(_devices(gpu, numa_as_list=as_list) for gpu in inventory.gpus)
    sets = [partitions.counter_set(gpu) for gpu in inventory.gpus if gpu.partitions]
    by_name: Mapping[str, CounterSet] = {
        counter.name: counter for counter in (*awaited.shared_counters, *sets)
    }
    vfio = (_vfio(device, numa_as_list=as_list) for device in inventory.vfio)
    found = sorted([*made, *_consistent(awaited.devices, by_name), *vfio], key=_pci)
    groups = []
    for _, of_gpu in groupby(found, key=_pci):
        devices = list(of_gpu)
        if limits is not None:
            devices, by_name = gpu_counters.exclusive(devices, by_name)
        ordered = placement_order.ordered(devices, by_name)
        devices = [shares.shared(_tainted(each, taints), policy) for each in ordered]
        groups.append(_group(devices, by_name))
    return Pool(PoolName(node), arrangement.arrange(groups, limits))


def still_awaited(
    published: Slice,
    inventory: Inventory,
    awaited: Collection[DeviceName | None],
    faulty: Collection[str],
) -> Slice:
    """The devices that were published and may be GPUs that have not described themselves yet.

    Args:
        published: The devices and counter sets that were published before, of all slices.
        inventory: The GPUs that have described themselves. One of them may have had another name.
        awaited: The GPUs that have not; None for one whose name is not known either.
        faulty: Devices that are to be withdrawn.
    """
    uuids = {gpu.uuid for gpu in inventory.gpus}
    found = []
    for device in published.devices:
        gpu = device_names.parent_name(device.name)
        is_awaited = gpu in awaited or None in awaited
        if device_names.is_vfio_name(device.name):
            continue  # sysfs describes it at once
        is_described = gpu in inventory.by_name or _gpu_uuid(device) in uuids
        if is_awaited and not is_described and not {gpu, device.name} & set(faulty):
            found.append(device)
    return Slice(tuple(found), published.shared_counters)


def gpus_among(published: Slice, uuids: Container[GpuUUID]) -> frozenset[DeviceName]:
    """The names of the published GPUs that are among these, by themselves or by their parts."""
    found = (device.name for device in published.devices if _gpu_uuid(device) in uuids)
    return frozenset(
        device_names.parent_name(name) for name in found if not device_names.is_vfio_name(name)
    )


def _tainted(device: Device, taints: Taints) -> Device:
    found = tuple(taints.get(_gpu_uuid(device), ()))
    if device_names.is_vfio_name(device.name):
        own = taints.get(VfioUUID(_text(device, "uuid")), ())
        found = tuple({taint.key: taint for taint in (*found, *own)}.values())
    return device if device.taints == found else device.model_copy(update={"taints": found})


def _pci(device: Device) -> str:
    return _text(device, names.ATTRIBUTE_PCI_BUS_ID)


def _gpu_uuid(device: Device) -> GpuUUID:
    """The UUID of the GPU that the device is, or is a part of."""
    return GpuUUID(_text(device, "parentUUID") or _text(device, "uuid"))


def _text(device: Device, attribute: str) -> str:
    found = device.attributes.get(attribute)
    return "" if found is None else found.string_value or ""


def _devices(gpu: Gpu, *, numa_as_list: bool) -> Iterable[Device]:
    """What is published of a GPU: itself, its MIG devices, its partitions."""
    if gpu.partitions:
        yield from partitions.devices(gpu, numa_as_list=numa_as_list)
    elif gpu.offers_whole:
        yield Device(
            name=gpu.name,
            attributes=attributes.whole_gpu(gpu, numa_as_list=numa_as_list),
            capacity=attributes.whole_gpu_capacity(gpu),
        )
    for mig in gpu.mig_devices:
        found = attributes.mig_device(mig, gpu, numa_as_list=numa_as_list)
        capacity = attributes.mig_capacity(mig, len(found))
        yield Device(name=mig.name, attributes=found, capacity=capacity)


def _vfio(device: VfioDevice, *, numa_as_list: bool) -> Device:
    return Device(
        name=device.name,
        attributes=attributes.vfio_device(device, numa_as_list=numa_as_list),
        capacity=attributes.vfio_capacity(device),
    )


def _group(devices: Sequence[Device], sets: Mapping[str, CounterSet]) -> DeviceGroup:
    """The devices of a GPU with the counter sets that they consume from."""
    consumed = dict.fromkeys(
        counter.counter_set for device in devices for counter in device.consumes_counters
    )
    return DeviceGroup(tuple(devices), tuple(sets[name] for name in consumed if name in sets))


def _consistent(awaited: Iterable[Device], sets: Container[str]) -> Iterator[Device]:
    """The devices that can stay, whole GPUs without counters if need be."""
    for device in awaited:
        if all(counter.counter_set in sets for counter in device.consumes_counters):
            yield device
        elif device_names.parent_name(device.name) == device.name:
            yield device.model_copy(update={"consumes_counters": ()})
