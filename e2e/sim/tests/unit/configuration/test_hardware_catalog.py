# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from uuid import NAMESPACE_DNS, uuid5

import pytest
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.description import NodeDescription

BOARDS = {
    "a30": {"a30": 2},
    "b200": {"b200": 8},
    "b200-shuffled": {"b200": 8},
    "dgx-a100": {"a100-40": 8},
    "dgx-a100-80": {"a100-80": 8},
    "dgx-a100-shuffled": {"a100-40": 8},
    "dgx-h100": {"h100": 8},
    "dgx-h100-shuffled": {"h100": 8},
    "gb200-nvl72": {"gb200": 4},
    "gb300-nvl72": {"gb300": 4},
    "hgx-h200": {"h200": 8},
    "l40s": {"l40s": 8},
    "mixed": {"a100-40": 2, "t4": 2},
    "mixed-shuffled": {"a100-40": 2, "t4": 2},
    "none": {},
    "rtx-pro-6000": {"rtx-pro-6000": 8},
    "t4": {"t4": 4},
}
ALL = hardware_catalog.profile_names()
SHUFFLED = [name for name in ALL if name.endswith("-shuffled")]


def test_the_package_has_exactly_the_profiles_of_the_specification() -> None:
    assert set(ALL) == set(BOARDS)


@pytest.mark.parametrize("name", ALL)
def test_a_profile_has_the_boards_of_its_machine(name: str) -> None:
    node = node_config.from_profile(name, "node-0")
    assert Counter(gpu.model for gpu in node.gpus) == BOARDS[name]


@pytest.mark.parametrize("name", ALL)
def test_boards_are_numbered_in_bus_order_with_distinct_identities(name: str) -> None:
    gpus = node_config.from_profile(name, "node-0").gpus
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert [gpu.bus.sort_key for gpu in gpus] == sorted(gpu.bus.sort_key for gpu in gpus)
    for identities in (
        {gpu.uuid for gpu in gpus},
        {gpu.minor for gpu in gpus},
        {gpu.serial for gpu in gpus},
        {gpu.iommu_group for gpu in gpus},
    ):
        assert len(identities) == len(gpus)


@pytest.mark.parametrize("name", [name for name in ALL if name not in SHUFFLED])
def test_minors_follow_the_bus_order_by_default(name: str) -> None:
    assert all(gpu.minor == gpu.index for gpu in node_config.from_profile(name, "node-0").gpus)


@pytest.mark.parametrize("name", SHUFFLED)
def test_in_a_shuffled_profile_no_minor_equals_its_index(name: str) -> None:
    plain = node_config.from_profile(name.removesuffix("-shuffled"), "node-0")
    shuffled = node_config.from_profile(name, "node-0")
    assert all(gpu.minor != gpu.index for gpu in shuffled.gpus)
    assert {gpu.minor for gpu in shuffled.gpus} == {gpu.minor for gpu in plain.gpus}
    assert [gpu.uuid for gpu in shuffled.gpus] == [gpu.uuid for gpu in plain.gpus]


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-a100-80", "dgx-h100", "hgx-h200", "b200"])
def test_on_baseboards_two_neighbours_share_a_pcie_root(name: str) -> None:
    roots = [gpu.pcie_root for gpu in node_config.from_profile(name, "node-0").gpus]
    assert roots[0::2] == roots[1::2]
    assert len(set(roots)) == 4


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72", "t4", "l40s", "a30", "mixed"])
def test_elsewhere_each_board_has_a_pcie_root_of_its_own(name: str) -> None:
    roots = [gpu.pcie_root for gpu in node_config.from_profile(name, "node-0").gpus]
    assert len(set(roots)) == len(roots)


@pytest.mark.parametrize("name", [name for name in ALL if name != "none"])
def test_the_root_lies_one_bus_below_its_first_board(name: str) -> None:
    for gpu in node_config.from_profile(name, "node-0").gpus:
        domain, bus = gpu.pcie_root.removeprefix("pci").split(":")
        first = min(
            other.bus.bus
            for other in node_config.from_profile(name, "node-0").gpus
            if other.pcie_root == gpu.pcie_root
        )
        assert (int(domain, 16), int(bus, 16)) == (gpu.bus.domain, first - 1)


@pytest.mark.parametrize("name", [name for name in ALL if name != "none"])
def test_the_first_half_of_the_boards_is_on_numa_node_0_and_the_rest_on_1(name: str) -> None:
    gpus = node_config.from_profile(name, "node-0").gpus
    half = len(gpus) // 2
    assert [gpu.numa_node for gpu in gpus] == [0] * half + [1] * half


def test_a_dgx_h100_is_what_was_captured() -> None:
    node = node_config.from_profile("dgx-h100", "node-0")
    first = node.gpus[0]
    assert [gpu.module_id for gpu in node.gpus] == [7, 5, 6, 8, 1, 3, 4, 2]
    assert " ".join(f"{gpu.bus.bus:02X}" for gpu in node.gpus) == "53 64 75 86 97 A8 B9 CA"
    assert first.name == "NVIDIA H100 80GB HBM3"
    assert (first.memory_mib, first.reserved_mib, first.bar1_mib) == (81559, 480, 131072)
    assert (first.pci_device, first.pci_subsystem) == (0x2330, 0x16C1)
    assert (first.architecture, first.compute_capability, first.brand) == (9, (9, 0), 14)
    assert (first.power_min_w, first.power_max_w) == (200, 700)
    assert (first.clock_graphics_mhz, first.clock_memory_mhz) == (1980, 2619)
    assert (first.addressing, first.ecc, first.c2c) == (1, True, False)
    assert first.vbios == "96.00.99.00.01"
    assert first.cores == 132 * 128
    assert (first.fabric.state, first.fabric.cluster_uuid.int, first.fabric.clique_id) == (3, 0, 0)


def test_a_rack_tray_belongs_to_a_fabric_cluster() -> None:
    for gpu in node_config.from_profile("gb200-nvl72", "tray-0").gpus:
        assert gpu.fabric.state == 3
        assert gpu.fabric.cluster_uuid.int != 0
        assert gpu.fabric.health_mask == 0xAA
        assert gpu.platform is not None
        assert (gpu.platform.host, gpu.platform.peer_type) == (1, 1)
        assert (gpu.addressing, gpu.c2c) == (2, True)


@pytest.mark.parametrize("name", ["t4", "l40s"])
def test_boards_without_mig_have_no_table_and_announce_no_layout_changes(name: str) -> None:
    for gpu in node_config.from_profile(name, "node-0").gpus:
        assert gpu.mig is None
        assert gpu.supported_events == 0xF


def test_uuids_are_version_5_of_node_and_index() -> None:
    node = node_config.from_profile("t4", "alpha")
    assert [gpu.uuid for gpu in node.gpus] == [
        f"GPU-{uuid5(NAMESPACE_DNS, f'alpha/{index}')}" for index in range(4)
    ]


@pytest.mark.parametrize("name", ALL)
def test_a_description_survives_json(name: str) -> None:
    node = node_config.from_profile(name, "node-0")
    assert NodeDescription.model_validate_json(node.model_dump_json()) == node
