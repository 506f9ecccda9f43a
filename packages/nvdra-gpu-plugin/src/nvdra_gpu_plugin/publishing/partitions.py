"""The partitions of a GPU as devices, and the counters that keep them apart.

What can be made on a GPU overlaps. The scheduler subtracts what an allocated device consumes from
the GPU's counter set, and allocates none for which too little is left. The whole GPU consumes
everything, so that it is allocated only if nothing of it is.

Source: docs/reference/gpu-devices.md, "Partitionable devices".
"""

import re
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import Final

from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceCounterConsumption,
)

from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.inventory import Gpu
from nvdra_gpu_plugin.devices.mig_profiles import MigProfile, Placement
from nvdra_gpu_plugin.publishing import attributes

_CAPITAL: Final = re.compile(r"(?=[A-Z])")

Amounts = Mapping[str, int]
"""How much of each counter, by its name."""


def counter_set(gpu: Gpu) -> CounterSet:
    """What the GPU has to share: its engines and memory, and its memory slices one by one.

    Of what a profile has, the counter is the most that any partition has. What MIG devices use that
    an administrator has made is missing.

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
    found = [_whole(gpu, numa_as_list=numa_as_list)] if gpu.offers_whole else []
    for partition in gpu.partitions:
        consumed = _consumed(partition.profile, partition.placement)
        if all(amount <= left[name] for name, amount in consumed.items()):
            found.append(
                Device(
                    name=partition.name,
                    attributes=attributes.partition(partition, gpu, numa_as_list=numa_as_list),
                    capacity=attributes.capacity(attributes.profile_amounts(partition.profile)),
                    consumes_counters=(_consumption(gpu, consumed),),
                )
            )
    return found


def _whole(gpu: Gpu, *, numa_as_list: bool) -> Device:
    """The whole GPU. It has the most that any partition has, so that requests can compare them."""
    most = _maxima(attributes.profile_amounts(each.profile) for each in gpu.partitions)
    return Device(
        name=gpu.name,
        attributes=attributes.whole_gpu(gpu, numa_as_list=numa_as_list),
        capacity=attributes.capacity(most),
        consumes_counters=(_consumption(gpu, _all(gpu)),),
    )


def _all(gpu: Gpu) -> Amounts:
    """Everything that the GPU has to share."""
    return _maxima(_consumed(each.profile, each.placement) for each in gpu.partitions)


def _left(gpu: Gpu) -> Amounts:
    """The same without what MIG devices use that an administrator has made.

    Those of one GPU instance use it together.
    """
    used: Tally[str] = Tally()
    for mig in {each.gpu_instance: each for each in gpu.mig_devices}.values():
        used.update(_consumed(mig.profile, mig.placement))
    return {name: max(0, amount - used[name]) for name, amount in _all(gpu).items()}


def _consumed(profile: MigProfile, placement: Placement) -> Amounts:
    """What a GPU instance takes, with what it takes nothing of."""
    slices = range(placement.start, placement.start + placement.size)
    engines = attributes.profile_amounts(profile)
    return {
        **{_counter_name(name): amount for name, amount in engines.items()},
        **{f"memory-slice-{number}": 1 for number in slices},
    }


def _maxima(each: Iterable[Amounts]) -> Amounts:
    found: dict[str, int] = {}
    for amounts in each:
        for name, amount in amounts.items():
            found[name] = max(amount, found.get(name, 0))
    return found


def _consumption(gpu: Gpu, amounts: Amounts) -> DeviceCounterConsumption:
    return DeviceCounterConsumption(counter_set=_set_name(gpu), counters=_counters(amounts))


def _counters(amounts: Amounts) -> Mapping[str, Counter]:
    return {name: Counter(value=Quantity.binary(amount)) for name, amount in amounts.items()}


def _set_name(gpu: Gpu) -> str:
    return f"{device_names.gpu_name(gpu.minor)}-counter-set"


def _counter_name(capacity: str) -> str:
    """`copyEngines` → `copy-engines`."""
    return _CAPITAL.sub("-", capacity).lower()
