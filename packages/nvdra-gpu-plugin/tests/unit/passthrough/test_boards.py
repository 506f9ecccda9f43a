# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough import boards
from nvdra_gpu_plugin.passthrough.bindings import Holding
from nvdra_gpu_plugin.passthrough.boards import Board, Obstacle
from nvdra_gpu_plugin.passthrough.pci_functions import PciBus, PciFunction

GPU, AUDIO, USB = (PciAddress(f"0000:3b:00.{number}") for number in range(3))
OTHER = PciAddress("0000:5e:00.0")
PORT = PciAddress("0000:3a:01.0")


def gpu(pci: PciAddress = GPU, driver: str | None = "nvidia", **fields: object) -> PciFunction:
    values: dict[str, object] = {"group": 17, "driver": driver, **fields}
    return PciFunction(pci, 0x10DE, 0x2330, 0x030200, **values)  # type: ignore[arg-type]


def part(pci: PciAddress, class_code: int = 0x040300, vendor: int = 0x10DE) -> PciFunction:
    return PciFunction(pci, vendor, 0x10F8, class_code, "snd_hda_intel", group=17)


def bus(*functions: PciFunction, has_iommu: bool = True, **fields: frozenset[object]) -> PciBus:
    values = {each.pci: each for each in functions}
    return PciBus(values, has_iommu=has_iommu, **fields)  # type: ignore[arg-type]


def only(found: PciBus, **arguments: object) -> Board:
    modules = {GPU: "vfio_pci", OTHER: "vfio_pci"}
    (board,) = boards.find(found, modules, **arguments)  # type: ignore[arg-type]
    return board


def test_a_gpu_alone_behind_its_port_is_isolated() -> None:
    port = PciFunction(PORT, 0x8086, 1, 0x060400, "pcieport", group=17)
    board = only(bus(gpu(), port))
    assert board == Board(gpu(), (), (), Holding.NVIDIA, "vfio_pci", None)
    assert board.is_isolated


def test_the_functions_of_its_slot_and_its_consumers_belong_to_a_gpu() -> None:
    beside = part(PciAddress("0000:3c:00.0"))
    board = only(bus(gpu(consumers=(beside.pci,)), part(AUDIO), part(USB, 0x0C0330), beside))
    assert [each.pci for each in board.companions] == [AUDIO, USB, beside.pci]
    assert board.functions == (board.gpu, *board.companions)
    assert (board.mates, board.refusal) == ((), None)


def test_a_virtual_function_of_its_slot_is_no_companion() -> None:
    virtual = PciFunction(
        PciAddress("0000:3b:00.4"), 0x10DE, 1, 0x030200, group=18, physical_function=GPU
    )
    assert only(bus(gpu(), virtual)).companions == ()


def test_boards_that_share_a_group_are_named() -> None:
    found = boards.find(bus(gpu(), gpu(OTHER)), {GPU: "vfio_pci", OTHER: "vfio_pci"})
    assert [each.is_isolated for each in found] == [False, False]
    refusal = found[0].refusal
    assert refusal is not None
    assert refusal.obstacle is Obstacle.SHARED_GROUP
    assert refusal.message == (
        "GPU 0000:3b:00.0 cannot be passed through: its IOMMU group 17 has 0000:5e:00.0 (nvidia), "
        "too"
    )


def test_a_network_card_in_the_group_is_an_obstacle_too() -> None:
    card = part(PciAddress("0000:3d:00.0"), 0x020000, 0x15B3)
    refusal = only(bus(gpu(), card)).refusal
    assert refusal is not None
    assert refusal.obstacle is Obstacle.SHARED_GROUP


@pytest.mark.parametrize(
    ("found", "arguments", "expected"),
    [
        (lambda: bus(gpu(group=None), has_iommu=False), {}, Obstacle.NO_IOMMU),
        (lambda: bus(gpu(group=None)), {}, Obstacle.NO_GROUP),
        (lambda: bus(gpu(virtual_functions=4)), {}, Obstacle.VIRTUAL_FUNCTIONS),
        (lambda: bus(gpu()), {"in_mig_mode": {GPU}}, Obstacle.MIG),
        (lambda: bus(gpu(driver="nouveau")), {}, Obstacle.FOREIGN_DRIVER),
        (lambda: bus(gpu(driver=None)), {}, Obstacle.NO_DRIVER),
        (lambda: bus(gpu(driver=None), nvidia_gpus=frozenset({GPU})), {}, Obstacle.UNBINDING),
        (lambda: bus(gpu(driver=None), vfio_groups=frozenset({17})), {}, Obstacle.UNBINDING),
    ],
)
def test_each_obstacle(
    found: Callable[[], PciBus], arguments: dict[str, object], expected: Obstacle
) -> None:
    refusal = only(found(), **arguments).refusal
    assert refusal is not None
    assert refusal.obstacle is expected
    assert refusal.message.startswith("GPU 0000:3b:00.0 cannot be passed through: ")
    assert refusal.remedy


def test_every_obstacle_is_in_the_table() -> None:
    assert set(boards.OBSTACLES) == set(Obstacle)


def test_a_gpu_whose_vfio_driver_cannot_be_loaded_is_not_offered() -> None:
    (board,) = boards.find(bus(gpu()), {GPU: None})
    assert board.refusal is not None
    assert board.refusal.obstacle is Obstacle.NO_MODULE


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci", None])
def test_a_gpu_of_a_claim_is_offered_whichever_driver_has_it(driver: str | None) -> None:
    board = only(bus(gpu(driver=driver)), claimed={GPU})
    assert (board.holding, board.refusal) == (Holding.CLAIM, None)


def test_a_gpu_on_vfio_without_a_claim_is_offered() -> None:
    board = only(bus(gpu(driver="vfio-pci")))
    assert (board.holding, board.refusal) == (Holding.PREBOUND, None)


def test_a_console_needs_the_framebuffer_of_the_kernel() -> None:
    assert only(bus(gpu(is_boot_display=True, has_framebuffer=True))).drives_console
    assert not only(bus(gpu(is_boot_display=True))).drives_console
