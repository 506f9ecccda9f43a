# SPDX-License-Identifier: Apache-2.0
"""Distributes devices and their counter sets over slices, as the API server's release wants them.

Source: docs/reference/resource-slices.md, "Limits by version", "Partitionable devices and
consumable capacity".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, TypeVar

from nvdra_api.resource.slices import CounterSet, Device

from nvdra_runtime.resourceslices.pool import Slice

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """What the API server accepts of slices with counters.

    Attributes:
        is_split: Whether a slice has either devices or counter sets, and devices consume from the
            counter sets of any slice. Otherwise they consume from those of their own slice only.
        devices: The most devices of one slice.
        counter_sets: The most counter sets of one slice; None if only `counters` limits them.
        counters: The most counters: of each set if `is_split`, otherwise of all sets of a slice.
        consumed: The most counters that the devices of one slice consume; None for no limit.
    """

    is_split: bool
    devices: int
    counter_sets: int | None
    counters: int
    consumed: int | None


SPLIT: Final = SliceLimits(is_split=True, devices=64, counter_sets=8, counters=32, consumed=None)
"""Since Kubernetes 1.35 (`k8s.io/api/resource/v1`, `ResourceSliceMaxDevicesWithTaintsOrConsumes…`,
`ResourceSliceMaxCounterSets`, `ResourceSliceMaxCountersPerCounterSet`)."""

COMBINED: Final = SliceLimits(
    is_split=False, devices=128, counter_sets=None, counters=32, consumed=1024
)
"""Kubernetes 1.33 and 1.34 (`ResourceSliceMaxDevices`, `ResourceSliceMaxSharedCounters`,
`ResourceSliceMaxDeviceCountersPerSlice`)."""

_FIRST_SPLIT: Final = (1, 35)

_DEVICES_PER_SLICE: Final = 64
"""The limit for devices with taints, counters or lists since 1.35; for others it is 128. The lower
limit is always used, so that a taint does not move devices between slices."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that share something, and the counter sets that say how; none if they do not."""

    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...] = ()


def limits_of(release: tuple[int, int]) -> SliceLimits:
    """The limits of a release of Kubernetes, major and minor.

    Pre-releases of 1.35 and versions of vendors count as 1.35: they refuse a slice with both.
    """
    return SPLIT if release >= _FIRST_SPLIT else COMBINED


def arrange(groups: Sequence[DeviceGroup], limits: SliceLimits | None) -> tuple[Slice, ...]:
    """The slices of a pool, with the devices in the order of the groups.

    Where there are counters, the devices of a group are in one slice if they fit, so that a change
    of one group changes one slice. A pool without devices has one empty slice.

    Args:
        groups: The devices and their counter sets.
        limits: Those of the API server; None only if there are no counter sets.
    """
    if limits is None or not any(group.counter_sets for group in groups):
        devices = chain.from_iterable(group.devices for group in groups)
        return tuple(Slice(part) for part in _chunks(devices, _DEVICES_PER_SLICE)) or (Slice(),)
    if limits.is_split:
        return tuple(_split(groups, limits))
    return tuple(_combined(groups, limits))


def _split(groups: Sequence[DeviceGroup], limits: SliceLimits) -> Iterator[Slice]:
    """Slices with counter sets, and then slices with devices."""
    counter_sets = chain.from_iterable(group.counter_sets for group in groups)
    for part in _chunks(counter_sets, limits.counter_sets or limits.counters):
        yield Slice(shared_counters=part)
    yield from _packed(groups, limits)


def _combined(groups: Sequence[DeviceGroup], limits: SliceLimits) -> Iterator[Slice]:
    """A slice for each group with counter sets, with both; the groups between them together."""
    between: list[DeviceGroup] = []
    for group in groups:
        if not group.counter_sets:
            between.append(group)
            continue
        yield from _packed(between, limits)
        between = []
        yield Slice(group.devices, group.counter_sets)
    yield from _packed(between, limits)


def _packed(groups: Iterable[DeviceGroup], limits: SliceLimits) -> Iterator[Slice]:
    """Slices with the devices of the groups; a group is divided only if it is too large."""
    most = min(limits.devices, _DEVICES_PER_SLICE)
    found: tuple[Device, ...] = ()
    for group in groups:
        if found and len(found) + len(group.devices) > most:
            yield Slice(found)
            found = ()
        *full, found = _chunks((*found, *group.devices), most)
        yield from map(Slice, full)
    if found:
        yield Slice(found)


def _chunks(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    left = iter(items)
    while part := tuple(islice(left, size)):
        yield part
