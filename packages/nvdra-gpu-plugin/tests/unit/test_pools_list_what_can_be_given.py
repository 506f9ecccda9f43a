"""Inventory → pool: in order of PCI address, whole GPUs only, split where the server wants it."""

from boards import board
from nvdra_api.types.gates import Gates
from nvdra_api.types.ids import NodeName
from nvdra_api.types.slices import Attribute
from nvdra_gpu_plugin import layout
from nvdra_gpu_plugin.inventory import Fault, Inventory

NODE = NodeName("node-a")


def names(inventory: Inventory) -> list[list[str]]:
    pool = layout.pool(inventory, Gates(), NODE)
    return [[device.name for device in slice_.devices] for slice_ in pool.slices]


def test_a_node_without_gpus_has_one_empty_slice() -> None:
    assert names(Inventory()) == [[]]


def test_a_board_in_mig_mode_is_not_offered_whole() -> None:
    assert names(Inventory((board(0), board(1, is_mig_enabled=True), board(2)))) == [
        ["gpu-0", "gpu-2"]
    ]


def test_a_faulty_board_is_left_out() -> None:
    left = Inventory((board(0), board(1))).without([Fault("gpu-1", "no device node")])
    assert names(left) == [["gpu-0"]]


def test_sixty_four_devices_are_the_most_in_one_slice() -> None:
    found = names(Inventory(tuple(board(minor) for minor in range(130))))
    assert [len(slice_) for slice_ in found] == [64, 64, 2]
    assert [name for slice_ in found for name in slice_] == [f"gpu-{n}" for n in range(130)]


def test_the_gate_for_lists_reaches_the_attributes() -> None:
    pool = layout.pool(Inventory((board(0),)), Gates.parse("DRAListTypeAttributes=true"), NODE)
    (device,) = pool.slices[0].devices
    assert device.attributes["resource.kubernetes.io/numaNode"] == Attribute("ints", (0,))
