# SPDX-License-Identifier: Apache-2.0
"""The order in which the devices of a GPU are published: those first that leave most to others.

Kubernetes allocates the first device that fits a request, in the order in which they are listed.
`1g.10gb` at slice 0 of an H100 leaves no room for `4g.40gb`, which can only be there; at slice 6 it
does. Source: docs/decisions/gpu-plugin.md; KEP-4970 (scoring) would replace it.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from nvdra_api.resource.slices import CounterSet, Device

_Amounts = tuple[int, ...]
"""Of each counter of a GPU, in the order of their names."""

_KEPT: Final = 64
"""Boards with different settings whose order is remembered."""


def ordered(devices: Sequence[Device], sets: Mapping[str, CounterSet]) -> list[Device]:
    """The devices of one GPU, by how many of the others each keeps from being allocated.

    Of those that are equal, the ones on the last memory slices come first: where they lie close
    together, most is left in one piece. Devices without counters come first, by name.

    Args:
        devices: The devices.
        sets: The counter sets by name.
    """
    names = sorted(
        {counter.counter_set for device in devices for counter in device.consumes_counters}
    )
    counters = [(name, key) for name in names for key in sorted(sets[name].counters)]
    has = tuple(_amount(sets[name], key) for name, key in counters)
    takes = [_consumed(device, counters) for device in devices]
    blocked = dict(zip(takes, _blocked(tuple(takes), has), strict=True))
    order = sorted(
        zip(takes, devices, strict=True),
        key=lambda pair: (blocked[pair[0]], pair[0], pair[1].name),
    )
    return [device for _, device in order]


def _consumed(device: Device, counters: Sequence[tuple[str, str]]) -> _Amounts:
    taken = {
        (each.counter_set, key): counter.value.amount
        for each in device.consumes_counters
        for key, counter in each.counters.items()
    }
    return tuple(int(taken.get(counter, 0)) for counter in counters)


def _amount(found: CounterSet, key: str) -> int:
    return int(found.counters[key].value.amount)


@functools.lru_cache(maxsize=_KEPT)
def _blocked(takes: tuple[_Amounts, ...], has: _Amounts) -> tuple[int, ...]:
    """For each device, how many others there is no room for beside it."""
    return tuple(
        sum(any(map(_exceeds, take, other, has)) for other in takes if other is not take)
        for take in takes
    )


def _exceeds(one: int, other: int, has: int) -> bool:
    return one + other > has
