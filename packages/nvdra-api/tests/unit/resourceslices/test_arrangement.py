# SPDX-License-Identifier: Apache-2.0
"""Devices and counter sets → slices, as each release of Kubernetes wants them."""

import pytest
from nvdra_api.ids import DeviceName
from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import Counter, CounterSet, Device
from nvdra_runtime.resourceslices import arrangement
from nvdra_runtime.resourceslices.arrangement import COMBINED, SPLIT, DeviceGroup
from nvdra_runtime.resourceslices.pool import Slice


def group(name: str, devices: int, *, shares: bool = True) -> DeviceGroup:
    sets = (CounterSet(name=name, counters={"slices": Counter(value=Quantity.binary(8))}),)
    made = tuple(Device(name=DeviceName(f"{name}-{number}")) for number in range(devices))
    return DeviceGroup(made, sets if shares else ())


def shape(slices: tuple[Slice, ...]) -> list[tuple[int, int]]:
    """Of each slice, how many devices and counter sets it has."""
    return [(len(each.devices), len(each.shared_counters)) for each in slices]


def test_nothing_is_one_empty_slice() -> None:
    assert arrangement.arrange((), None) == arrangement.arrange((), SPLIT) == (Slice(),)


def test_devices_that_share_nothing_fill_one_slice_after_the_other() -> None:
    groups = [group(f"g{number}", 7, shares=False) for number in range(16)]
    for limits in (None, SPLIT, COMBINED):
        assert shape(arrangement.arrange(groups, limits)) == [(64, 0), (48, 0)]


def test_counter_sets_have_slices_of_their_own_and_come_first() -> None:
    groups = [group(f"g{number:02}", 26) for number in range(16)]
    slices = arrangement.arrange(groups, SPLIT)
    assert shape(slices) == [(0, 8), (0, 8), *[(52, 0)] * 8]
    names = [device.name for each in slices for device in each.devices]
    assert names == [device.name for each in groups for device in each.devices]
    sets = [each.name for part in slices for each in part.shared_counters]
    assert sets == [f"g{number:02}" for number in range(16)]


def test_a_group_that_is_too_large_for_a_slice_is_divided() -> None:
    groups = [group("a", 10), group("b", 130), group("c", 3)]
    assert shape(arrangement.arrange(groups, SPLIT)) == [(0, 3), (10, 0), (64, 0), (64, 0), (5, 0)]


def test_before_1_35_devices_are_in_the_slice_of_what_they_share() -> None:
    alone = [group(f"s{number}", 1, shares=False) for number in range(4)]
    groups = [*alone[:2], group("a", 26), group("b", 31), *alone[2:]]
    slices = arrangement.arrange(groups, COMBINED)
    assert shape(slices) == [(2, 0), (26, 1), (31, 1), (2, 0)]
    names = [device.name for each in slices for device in each.devices]
    assert names == [device.name for each in groups for device in each.devices]


@pytest.mark.parametrize(
    ("release", "is_split"),
    [((1, 33), False), ((1, 34), False), ((1, 35), True), ((1, 36), True), ((2, 0), True)],
)
def test_slices_are_split_since_1_35(release: tuple[int, int], is_split: bool) -> None:
    assert arrangement.limits_of(release).is_split is is_split
