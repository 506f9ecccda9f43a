# SPDX-License-Identifier: Apache-2.0
"""GPUs as vfio devices: their names and UUIDs."""

import random

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.devices import vfio_devices
from nvdra_testing.hardware.gpus import vfio_h100

ADDRESSES = [PciAddress(f"0000:{bus:02x}:00.0") for bus in range(8)]


def test_the_uuid_is_the_references() -> None:
    """docs/reference/gpu-prepare.md, at its beginning, has this example."""
    device = vfio_h100(0, pci=PciAddress("0000:1b:00.0"))
    assert device.uuid == "90d1ede6-4660-56ab-bea3-b9875fe7e5eb"


def test_the_name_has_the_index_and_not_the_minor_number() -> None:
    assert vfio_h100(0, index=3).name == "gpu-vfio-3"


def test_the_index_is_the_position_by_domain_bus_device_and_function() -> None:
    found = [PciAddress(text) for text in ("10000:01:00.0", "0001:00:00.0", "0000:ff:00.0")]
    assert vfio_devices.indexes(found, {}) == {found[2]: 0, found[1]: 1, found[0]: 2}


def test_a_gpu_keeps_its_index_when_one_before_it_is_unplugged_and_another_is_plugged_in() -> None:
    first = vfio_devices.indexes(ADDRESSES[:3], {})
    without = vfio_devices.indexes(ADDRESSES[1:3], first)
    assert without == first, "also that of the GPU that is gone: a claim may hold it"
    new = vfio_devices.indexes([*ADDRESSES[1:3], ADDRESSES[7]], without)
    assert new == {**first, ADDRESSES[7]: 3}


def test_a_gpu_that_returns_has_its_index_again() -> None:
    first = vfio_devices.indexes(ADDRESSES[:2], {})
    assert vfio_devices.indexes(ADDRESSES[:2], vfio_devices.indexes(ADDRESSES[:1], first)) == first


@given(st.lists(st.sets(st.sampled_from(ADDRESSES)), max_size=8))
def test_no_two_gpus_of_a_boot_ever_share_an_index_and_none_changes(
    scans: list[set[PciAddress]],
) -> None:
    kept: dict[PciAddress, int] = {}
    for scan in scans:
        found = vfio_devices.indexes(random.sample(sorted(scan), len(scan)), kept)
        assert found.items() >= kept.items()
        assert found.keys() == kept.keys() | scan
        assert sorted(found.values()) == sorted(set(found.values()))
        assert all(number < len(ADDRESSES) for number in found.values())
        kept = found
