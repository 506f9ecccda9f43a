# SPDX-License-Identifier: Apache-2.0
"""The counters that keep a GPU and its vfio device from being allocated to different claims.

Both consume all of the GPU's counter set. A GPU with partitions has a set; one without gets a set
with the counter `gpu`, of which there is one.

Source: docs/reference/resource-slices.md, "Partitionable devices and consumable capacity"; the
reference publishes a GPU and its vfio device as independent devices.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import Counter, CounterSet, Device, DeviceCounterConsumption

from nvdra_gpu_plugin.devices import device_names

_WHOLE: Final = {"gpu": Counter(value=Quantity.binary(1))}


def exclusive(
    devices: Sequence[Device], sets: Mapping[str, CounterSet]
) -> tuple[list[Device], Mapping[str, CounterSet]]:
    """The devices of one GPU so that its vfio device excludes all others.

    A GPU that is offered in one form only stays as it is. A vfio device beside MIG devices that
    consume nothing is left out, as nothing would keep them apart.

    Args:
        devices: What is published of one GPU.
        sets: The counter sets of all GPUs by name.

    Returns:
        The devices, and the counter sets with the one that was made for them, if any.
    """
    others = [device for device in devices if not device_names.is_vfio_name(device.name)]
    if not others or len(others) == len(devices):
        return list(devices), sets
    consumed = {counter.counter_set for device in others for counter in device.consumes_counters}
    bare = [device for device in others if not device.consumes_counters]
    if not all(_is_whole(device) for device in bare):
        return others, sets
    if not consumed:
        parent = device_names.parent_name(others[0].name)
        made = CounterSet(name=f"{parent}-counter-set", counters=_WHOLE)
        return [_consuming(device, [made]) for device in devices], {**sets, made.name: made}
    wanted = [sets[name] for name in sorted(consumed)]
    found = [
        device if device.consumes_counters else _consuming(device, wanted) for device in devices
    ]
    return found, sets


def _is_whole(device: Device) -> bool:
    return device_names.parent_name(device.name) == device.name


def _consuming(device: Device, sets: Sequence[CounterSet]) -> Device:
    consumed = tuple(
        DeviceCounterConsumption(counter_set=found.name, counters=found.counters) for found in sets
    )
    return device.model_copy(update={"consumes_counters": consumed})
