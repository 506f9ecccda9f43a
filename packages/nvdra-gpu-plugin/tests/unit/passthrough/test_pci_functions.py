# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough import pci_functions
from nvdra_gpu_plugin.passthrough.pci_functions import PciFunction, is_vfio
from nvdra_testing.node.pci_tree import AUDIO, GPU, SysfsTree

RESOURCE = """\
0x0000200000000000 0x0000200000ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000200000000000 0x0000201fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000200002000000 0x0000200003ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000300000000000 0x0000300fffffffff 0x000000000014220c"""
"""16 MiB, 128 GiB and 32 MiB of an H100; the last line is no BAR, but one of virtual functions."""


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def test_a_function_is_read_with_all_its_files(tree: SysfsTree) -> None:
    files = {"numa_node": "1", "modalias": "pci:v000010DE", "boot_vga": "0", "sriov_numvfs": "0"}
    directory = tree.add(GPU, 0x10DE, 0x030200, "nvidia", 17, **files, resource=RESOURCE)
    (directory / f"consumer:pci:{AUDIO}").mkdir()
    bus = pci_functions.read(tree.host)
    assert bus.functions == {
        GPU: PciFunction(
            pci=PciAddress(GPU),
            vendor=0x10DE,
            device=0x2330,
            class_code=0x030200,
            driver="nvidia",
            group=17,
            numa_node=1,
            pcie_root="pci0000:3a",
            consumers=(PciAddress(AUDIO),),
            modalias="pci:v000010DE",
            memory_bytes=256 << 30,
        )
    }
    assert bus.drivers == {"nvidia", "pcieport", "vfio-pci"}
    assert bus.has_iommu
    assert bus.unreadable == {}


def test_a_function_on_vfio_of_the_kernel_s_screen(tree: SysfsTree) -> None:
    files = {"driver_override": "vfio-pci", "boot_vga": "1", "numa_node": "-1"}
    directory = tree.add(GPU, 0x10DE, 0x030000, "vfio-pci", 3, **files)
    (directory / "vfio-dev/vfio12").mkdir(parents=True)
    (directory / "graphics/fb0").mkdir(parents=True)
    (tree.host.sys / "class/vfio/3").mkdir()
    (tree.host.sys / "class/vfio/noiommu-0").mkdir()
    bus = pci_functions.read(tree.host)
    function = bus.functions[PciAddress(GPU)]
    assert (function.override, function.vfio_device, function.numa_node) == (
        "vfio-pci",
        "vfio12",
        None,
    )
    assert function.is_on_vfio
    assert function.is_boot_display
    assert function.has_framebuffer
    assert bus.vfio_groups == {3}


def test_a_virtual_function_is_no_gpu(tree: SysfsTree) -> None:
    directory = tree.add("0000:3b:00.4", 0x10DE, 0x030200, "nvidia", 18)
    (directory / "physfn").symlink_to(f"../{GPU}")
    tree.add(GPU, 0x10DE, 0x030200, "nvidia", 17, sriov_numvfs="4")
    functions = pci_functions.read(tree.host).functions
    virtual, gpu = functions[PciAddress("0000:3b:00.4")], functions[PciAddress(GPU)]
    assert (virtual.physical_function, virtual.is_gpu) == (GPU, False)
    assert (gpu.virtual_functions, gpu.is_gpu) == (4, True)


@pytest.mark.parametrize(
    "damage", [{"class": "?"}, {"vendor": ""}, {"sriov_numvfs": "x"}, {"resource": "0x1 0x2"}]
)
def test_a_broken_entry_is_left_out_and_no_other_one(
    tree: SysfsTree, damage: dict[str, str]
) -> None:
    broken = "0000:86:00.0"
    directory = tree.add(broken, 0x10DE, 0x030200, "nvidia", 4)
    for name, text in damage.items():
        (directory / name).write_text(text)
    tree.add(GPU, 0x10DE, 0x030200, "nvidia", 17)
    bus = pci_functions.read(tree.host)
    assert set(bus.functions) == {GPU}
    assert set(bus.unreadable) == {broken}


def test_a_function_whose_directory_is_gone_was_taken_off_the_bus(tree: SysfsTree) -> None:
    (tree.host.sys / "bus/pci/devices" / AUDIO).symlink_to("../../../devices/gone")
    tree.add(GPU, 0x10DE, 0x030200, "nvidia", 17)
    bus = pci_functions.read(tree.host)
    assert (set(bus.functions), bus.unreadable) == ({GPU}, {})


def test_a_group_that_vfio_makes_without_an_iommu_is_none(tree: SysfsTree) -> None:
    tree.add(GPU, 0x10DE, 0x030200, "vfio-pci", 0)
    (tree.host.sys / "kernel/iommu_groups/0/name").write_text("vfio-noiommu\n")
    assert pci_functions.read(tree.host).functions[PciAddress(GPU)].group is None


def test_some_functions_are_read_with_all_of_their_groups(tree: SysfsTree) -> None:
    tree.add(GPU, 0x10DE, 0x030200, "nvidia", 17)
    tree.add(AUDIO, 0x10DE, 0x040300, "snd_hda_intel", 17)
    tree.add("0000:86:00.0", 0x10DE, 0x030200, "nvidia", 4)
    bus = pci_functions.read_some(tree.host, [PciAddress(GPU), PciAddress("0000:77:00.0")])
    assert set(bus.functions) == {GPU, AUDIO}


def test_a_node_without_an_iommu_has_no_groups(tree: SysfsTree) -> None:
    tree.add(GPU, 0x10DE, 0x030200, "nvidia")
    bus = pci_functions.read(tree.host)
    assert bus.has_iommu is False
    assert bus.functions[PciAddress(GPU)].group is None


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("vfio-pci", True),
        ("nvgrace_gpu_vfio_pci", True),
        ("mlx5-vfio-pci", True),
        ("nvidia", False),
        ("pci-stub", False),
    ],
)
def test_variants_of_vfio_pci_are_vfio_drivers(driver: str, expected: bool) -> None:
    assert is_vfio(driver) is expected
