# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node and what they offer."""

from nvdra_api.ids import DeviceName
from nvdra_gpu_plugin.devices.inventory import Fault, Inventory
from nvdra_testing.hardware.gpus import divisible, h100, in_mig_mode, vfio_h100

MIXED = Inventory((h100(0), in_mig_mode(1, (19, 6), (9, 0)), in_mig_mode(2)))


def offered(inventory: Inventory) -> list[str]:
    return [device.name for device in inventory.devices]


def test_a_gpu_in_mig_mode_offers_its_mig_devices_and_not_itself() -> None:
    assert offered(MIXED) == ["gpu-0", "gpu-1-mig-1g10gb-19-6", "gpu-1-mig-3g40gb-9-0"]


def test_every_gpu_and_every_mig_device_is_found_by_name_and_uuid() -> None:
    for name in ("gpu-0", "gpu-1", "gpu-2", "gpu-1-mig-3g40gb-9-0"):
        device = MIXED.by_name[DeviceName(name)]
        assert MIXED.by_uuid[device.uuid] is device
    mig = MIXED.by_name[DeviceName("gpu-1-mig-3g40gb-9-0")]
    assert MIXED.gpu_of(mig).name == "gpu-1"


def test_with_a_gpu_that_is_faulty_its_mig_devices_are_left_out() -> None:
    assert offered(MIXED.without([Fault("gpu-1", "is lost")])) == ["gpu-0"]


def test_a_mig_device_that_is_faulty_is_left_out_alone() -> None:
    left = MIXED.without([Fault("gpu-1-mig-3g40gb-9-0", "no capability")])
    assert offered(left) == ["gpu-0", "gpu-1-mig-1g10gb-19-6"]
    assert len(left.gpus) == 3


def test_the_vfio_device_of_a_gpu_stays_where_the_gpu_is_left_out_and_the_reverse() -> None:
    both = Inventory((h100(0),), (vfio_h100(0), vfio_h100(1)))
    assert both.without_devices({"gpu-0"}) == Inventory((), both.vfio)
    assert both.without_devices({"gpu-vfio-0"}) == Inventory(both.gpus, (vfio_h100(1),))


def test_what_changes_of_gpus_leaves_vfio_devices_as_they_are() -> None:
    gpu = divisible(0, (19, 0))
    both = Inventory((gpu,), (vfio_h100(0),))
    assert both.keeping_modes({gpu.uuid: True}).vfio == both.vfio
    assert both.without_partitions() == Inventory((h100(0),), both.vfio)
