# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.filesystem import sysfs, trees
from nvdra_sim.filesystem.trees import Tree
from nvdra_sim.testing.node_fixtures import MakeNode

PASSED_THROUGH = {
    "gpus": [{"index": 1, "bound_driver": "vfio-pci"}, {"index": 2, "bound_driver": "none"}]
}
MakeRoot = Callable[..., Path]


def tree(profile: str, **sections: object) -> Tree:
    return sysfs.tree(node_config.from_profile(profile, "node-0", sections))


@pytest.fixture
def root(tmp_path: Path, shared_node: MakeNode) -> MakeRoot:
    def written(profile: str, **sections: object) -> Path:
        if not sections:
            return shared_node(profile).roots.sys
        trees.write(tree(profile, **sections), tmp_path)
        return tmp_path

    return written


def function(root: Path, bus_id: str) -> Path:
    return root / "bus/pci/devices" / bus_id


def read(root: Path, bus_id: str, name: str) -> str:
    return (function(root, bus_id) / name).read_text().strip()


@pytest.mark.parametrize("profile", hardware_catalog.profile_names())
def test_one_readlink_gives_the_pcie_root_of_every_gpu(profile: str, root: MakeRoot) -> None:
    node = node_config.from_profile(profile, "node-0")
    devices = root(profile) / "bus/pci/devices"
    for gpu in node.gpus:
        target = os.path.normpath(f"bus/pci/devices/{(devices / gpu.bus_id).readlink()}")
        parts = target.split("/")
        assert parts[0] == "devices"
        assert parts[1] == gpu.pcie_root
        assert parts[-1] == gpu.bus_id


@pytest.mark.parametrize("profile", hardware_catalog.profile_names())
def test_every_listed_function_has_what_a_pci_scan_insists_on(profile: str, root: MakeRoot) -> None:
    for listed in (root(profile) / "bus/pci/devices").iterdir():
        assert int((listed / "vendor").read_text(), 16) in (0x10DE, 0x8086, 0x15B3)
        assert int((listed / "class").read_text(), 16) > 0
        assert int((listed / "device").read_text(), 16) > 0
        assert int((listed / "numa_node").read_text()) >= -1
        rows = [line.split() for line in (listed / "resource").read_text().splitlines()]
        assert all(len(row) == 3 and int(row[2], 16) >= 0 for row in rows)


@pytest.mark.parametrize(
    "profile", [name for name in hardware_catalog.profile_names() if name != "none"]
)
def test_every_link_leads_somewhere(profile: str, root: MakeRoot) -> None:
    links = [path for path in root(profile).rglob("*") if path.is_symlink()]
    assert links
    assert [path for path in links if not path.exists()] == []


def test_a_gpu_shows_its_identity(root: MakeRoot) -> None:
    found = root("dgx-h100")
    facts = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class", "numa_node")
    assert [read(found, "0000:97:00.0", name) for name in facts] == [
        "0x10de",
        "0x2330",
        "0x10de",
        "0x16c1",
        "0x030200",
        "1",
    ]
    assert read(found, "0000:97:00.0", "modalias") == (
        "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
    )


def test_configuration_space_agrees_with_the_files(root: MakeRoot) -> None:
    config_space = (function(root("t4"), "0000:3b:00.0") / "config").read_bytes()
    assert len(config_space) == 256
    assert config_space[:4] == bytes.fromhex("de10 b81e")
    assert config_space[9:12] == bytes((0x00, 0x02, 0x03))
    assert config_space[0x2C:0x30] == bytes.fromhex("de10 a212")


def test_regions_have_the_sizes_of_the_board_and_do_not_overlap(root: MakeRoot) -> None:
    rows = read(root("dgx-h100"), "0000:53:00.0", "resource").splitlines()
    regions = {}
    for index, row in enumerate(rows):
        start, end, flags = (int(word, 16) for word in row.split())
        if start != end:
            assert flags & 0x06 == 0x04
            regions[index] = (start, end)
    mib = {index: (end - start + 1) >> 20 for index, (start, end) in regions.items()}
    assert mib == {0: 16, 2: 131072, 4: 32}
    ordered = sorted(regions.values())
    assert all(first[1] < second[0] for first, second in pairwise(ordered))


def test_the_driver_link_says_who_holds_the_gpu(root: MakeRoot) -> None:
    found = root("t4", overrides=PASSED_THROUGH)
    assert (function(found, "0000:3b:00.0") / "driver").resolve().name == "nvidia"
    assert (function(found, "0000:86:00.0") / "driver").resolve().name == "vfio-pci"
    assert not (function(found, "0000:af:00.0") / "driver").exists()
    drivers = found / "bus/pci/drivers"
    assert (drivers / "vfio-pci/0000:86:00.0").resolve().name == "0000:86:00.0"
    assert not (drivers / "nvidia/0000:86:00.0").exists()


def test_only_the_nvidia_driver_makes_drm_devices(root: MakeRoot) -> None:
    found = root("t4", overrides=PASSED_THROUGH)
    drm = function(found, "0000:d8:00.0") / "drm"
    assert sorted(path.name for path in drm.iterdir()) == ["card4", "renderD131"]
    assert not (function(found, "0000:86:00.0") / "drm").exists()
    assert (function(found, "0000:86:00.0") / "vfio-dev/vfio0").is_dir()  # the smallest number


def test_iommu_groups_and_gpus_point_at_each_other(root: MakeRoot) -> None:
    found = root("t4")
    group = (function(found, "0000:af:00.0") / "iommu_group").resolve()
    assert group.parent == (found / "kernel/iommu_groups").resolve()
    assert [path.name for path in (group / "devices").iterdir()] == ["0000:af:00.0"]


def test_without_an_iommu_there_are_no_groups(root: MakeRoot) -> None:
    found = root("t4", node={"iommu": {"enabled": False, "iommufd": False}})
    assert not (found / "kernel").exists()
    assert not (function(found, "0000:3b:00.0") / "iommu_group").exists()


def test_loaded_modules_are_listed(root: MakeRoot) -> None:
    assert (root("none") / "module/nvidia/version").read_text() == "580.95.05\n"
    for missing in ("module_loaded", "uvm_loaded"):
        assert "module/nvidia_uvm" not in tree("none", driver={missing: False})


def test_nvlink_5_switches_mark_their_management_functions(root: MakeRoot) -> None:
    adapters = sorted((root("b200") / "class/infiniband").iterdir())
    assert len(adapters) == 4
    assert all(b"SW_MNG" in (adapter / "device/vpd").read_bytes() for adapter in adapters)
    assert not [path for path in tree("dgx-h100") if "infiniband" in path]


def test_numa_nodes_of_gpu_memory_are_online_without_cpus(root: MakeRoot) -> None:
    found = root("gb200-nvl72") / "devices/system/node"
    assert (found / "online").read_text() == "0,1,2,10,18,26\n"
    assert (found / "node1/cpulist").read_text() == "56-111\n"
    assert (found / "node18/cpulist").read_text() == "\n"
