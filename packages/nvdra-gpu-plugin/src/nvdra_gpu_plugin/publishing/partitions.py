# SPDX-License-Identifier: Apache-2.0
"""The partitions of a GPU as devices, and the counters that keep them apart.

What can be made on a GPU overlaps. The scheduler subtracts what an allocated device consumes from
the GPU's counter set, and allocates none for which too little is left. The whole GPU consumes
everything, so that it is allocated only if nothing of it is.

Source: docs/reference/gpu-devices.md, "Partitionable devices".
"""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
)

from nvdra_gpu_plugin.devices.inventory import Gpu, MigPartition
from nvdra_gpu_plugin.devices.mig_profiles import MigProfile, Placement
from nvdra_gpu_plugin.publishing import attributes

_COUNTERS: Final = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
    "memory": "memory",
}
"""The counters by the names of the capacities. A counter's name is a DNS label."""

_ONE: Final = Counter(value=Quantity.binary(1))

Amounts = Mapping[str, int]
"""How much of each counter, by its name."""


def counter_set(gpu: Gpu) -> CounterSet:
    """What the GPU has to share: its engines and memory, and its memory slices one by one.

    Of what a profile has, the counter is the most that any partition has. What GPU instances use
    that an administrator has made, or that claims have left, is missing.

    Args:
        gpu: A GPU with partitions.
    """
    return CounterSet(name=_set_name(gpu), counters=_counters(_left(gpu)))


def devices(gpu: Gpu, *, numa_as_list: bool = False) -> list[Device]:
    """The GPU as a whole, if it can be had, and its partitions, as far as there is room for them.

    Args:
        gpu: A GPU with partitions.
        numa_as_list: As for `attributes.whole_gpu`.
    """
    left = _left(gpu)
    profiles = {partition.profile.id: partition.profile for partition in gpu.partitions}
    common = _common(gpu, profiles.values(), numa_as_list=numa_as_list)
    parts = [
        _part(gpu, partition, common[partition.profile.id])
        for partition in gpu.offered_partitions
        if _fits(_consumed(partition.profile, partition.placement), left)
    ]
    return [_whole(gpu, numa_as_list=numa_as_list), *parts] if gpu.offers_whole else parts


class _Common(NamedTuple):
    """What the partitions of a profile have in common. A node has up to 500 of them in all."""

    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, DeviceCapacity]
    engines: Mapping[str, Counter]


def _common(
    gpu: Gpu, profiles: Collection[MigProfile], *, numa_as_list: bool
) -> Mapping[int, _Common]:
    """The same by the profile's id."""
    names = {profile.name for profile in profiles}
    of_profiles = attributes.partitions(gpu, names, numa_as_list=numa_as_list)
    return {
        profile.id: _Common(
            of_profiles[profile.name],
            attributes.capacity(attributes.profile_amounts(profile)),
            _counters(_engines(profile)),
        )
        for profile in profiles
    }


def _part(gpu: Gpu, partition: MigPartition, common: _Common) -> Device:
    counters = {**common.engines, **dict.fromkeys(_slices(partition.placement), _ONE)}
    return Device(
        name=partition.name,
        attributes=common.attributes,
        capacity=common.capacity,
        consumes_counters=(
            DeviceCounterConsumption(counter_set=_set_name(gpu), counters=counters),
        ),
    )


def _whole(gpu: Gpu, *, numa_as_list: bool) -> Device:
    """The whole GPU. It has the most that any partition has, so that requests can compare them."""
    most = _maxima(attributes.profile_amounts(partition.profile) for partition in gpu.partitions)
    return Device(
        name=gpu.name,
        attributes=attributes.whole_gpu(gpu, numa_as_list=numa_as_list),
        capacity=attributes.capacity(most),
        consumes_counters=(
            DeviceCounterConsumption(counter_set=_set_name(gpu), counters=_counters(_all(gpu))),
        ),
    )


def _all(gpu: Gpu) -> Amounts:
    """Everything that the GPU has to share."""
    return _maxima(
        _consumed(partition.profile, partition.placement) for partition in gpu.partitions
    )


def _left(gpu: Gpu) -> Amounts:
    """The same without what GPU instances use that an administrator has made, or ended claims.

    The MIG devices of one use it together, and one without any is in the way as well.
    """
    used: Tally[str] = Tally()
    devices = (*gpu.mig_devices, *gpu.withheld)
    taken = {device.gpu_instance: (device.profile, device.placement) for device in devices}
    taken |= {
        instance.id: (instance.profile, instance.placement) for instance in gpu.bare_instances
    }
    for profile, placement in taken.values():
        used.update(_consumed(profile, placement))
    for partition in gpu.partitions:
        if (partition.profile.id, partition.placement.start) in gpu.left_places:
            used.update(_consumed(partition.profile, partition.placement))
    return {name: max(0, amount - used[name]) for name, amount in _all(gpu).items()}


def _consumed(profile: MigProfile, placement: Placement) -> Amounts:
    """What a GPU instance takes, with what it takes nothing of."""
    return {**_engines(profile), **dict.fromkeys(_slices(placement), 1)}


def _fits(consumed: Amounts, left: Amounts) -> bool:
    return all(amount <= left[name] for name, amount in consumed.items())


def _engines(profile: MigProfile) -> Amounts:
    amounts = attributes.profile_amounts(profile)
    return {_COUNTERS[name]: amount for name, amount in amounts.items()}


def _slices(placement: Placement) -> list[str]:
    """The counters of memory slices."""
    numbers = range(placement.start, placement.start + placement.size)
    return [f"memory-slice-{number}" for number in numbers]


def _maxima(each: Iterable[Amounts]) -> Amounts:
    found: dict[str, int] = {}
    for amounts in each:
        for name, amount in amounts.items():
            found[name] = max(amount, found.get(name, 0))
    return found


def _counters(amounts: Amounts) -> Mapping[str, Counter]:
    return {name: Counter(value=Quantity.binary(amount)) for name, amount in amounts.items()}


def _set_name(gpu: Gpu) -> str:
    return f"{gpu.name}-counter-set"
