"""Inventory → pool: in order of PCI address, whole GPUs only, split where the server wants it."""

from nvdra_api.gates import FeatureGates
from nvdra_api.ids import NodeName
from nvdra_api.resource.slices import DeviceAttribute
from nvdra_gpu_plugin.devices.inventory import Fault, Inventory
from nvdra_gpu_plugin.publishing import layout
from nvdra_testing.hardware.gpus import h100

NODE = NodeName("node-a")


def names(inventory: Inventory) -> list[list[str]]:
    pool = layout.pool(inventory, FeatureGates(), NODE)
    return [[device.name for device in slice_.devices] for slice_ in pool.slices]


def test_a_node_without_gpus_has_one_empty_slice() -> None:
    assert names(Inventory()) == [[]]


def test_a_board_in_mig_mode_is_not_offered_whole() -> None:
    assert names(Inventory((h100(0), h100(1, is_mig_enabled=True), h100(2)))) == [
        ["gpu-0", "gpu-2"]
    ]


def test_a_faulty_board_is_left_out() -> None:
    left = Inventory((h100(0), h100(1))).without([Fault("gpu-1", "no device node")])
    assert names(left) == [["gpu-0"]]


def test_sixty_four_devices_are_the_most_in_one_slice() -> None:
    found = names(Inventory(tuple(h100(minor) for minor in range(130))))
    assert [len(slice_) for slice_ in found] == [64, 64, 2]
    assert [name for slice_ in found for name in slice_] == [f"gpu-{n}" for n in range(130)]


def test_the_gate_for_lists_reaches_the_attributes() -> None:
    pool = layout.pool(
        Inventory((h100(0),)), FeatureGates.parse("DRAListTypeAttributes=true"), NODE
    )
    (device,) = pool.slices[0].devices
    assert device.attributes["resource.kubernetes.io/numaNode"] == DeviceAttribute(int_values=(0,))
