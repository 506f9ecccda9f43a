# SPDX-License-Identifier: Apache-2.0
from nvdra_sim.configuration import node_config
from nvdra_sim.filesystem import sysfs
from nvdra_sim.filesystem.trees import Link
from nvdra_sim.pci import functions
from nvdra_sim.testing.passthrough_fixtures import PAIR_BEHIND_A_SWITCH

DESKTOP = {"overrides": {"gpus": [{"index": 0, "companions": ["audio", "usb", "ucsi"]}]}}


def groups(**sections: object) -> dict[str, int | None]:
    node = node_config.from_profile("t4", "node-0", sections)
    return {each.address: each.group for each in functions.of(node)}


def test_every_endpoint_and_port_has_a_group_and_gpus_are_alone() -> None:
    found = groups()
    assert len(found) == 8
    assert len(set(found.values())) == 8
    assert None not in found.values()


def test_the_functions_of_a_board_share_its_group() -> None:
    found = groups(**DESKTOP)
    assert {found[f"0000:3b:00.{number}"] for number in range(4)} == {found["0000:3b:00.0"]}
    assert found["0000:86:00.0"] != found["0000:3b:00.0"]


def test_a_switch_without_acs_is_one_group_with_all_below_it() -> None:
    shared = groups(**PAIR_BEHIND_A_SWITCH)
    below = ("0000:ad:00.0", "0000:ad:08.0", "0000:ad:10.0", "0000:af:00.0", "0000:d8:00.0")
    assert len({shared[address] for address in below}) == 1
    assert shared["0000:ae:01.0"] != shared["0000:ad:00.0"]  # the root port isolates
    node = {**PAIR_BEHIND_A_SWITCH["node"], "iommu": {"acs": True}}
    isolated = groups(**{**PAIR_BEHIND_A_SWITCH, "node": node})
    assert len({isolated[address] for address in below}) == 5


def test_a_gpu_can_be_without_group_on_a_node_with_an_iommu() -> None:
    found = groups(overrides={"gpus": [{"index": 1, "iommu_group": "none"}]})
    assert found["0000:86:00.0"] is None
    assert found["0000:3b:00.0"] is not None
    assert set(groups(node={"iommu": {"enabled": False}}).values()) == {None}


def test_the_kernel_links_the_functions_beside_a_gpu_to_it() -> None:
    node = node_config.from_profile("t4", "node-0", DESKTOP)
    tree = sysfs.tree(node)
    gpu = "devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0"
    for number in (1, 2, 3):
        address = f"0000:3b:00.{number}"
        link = tree[f"{gpu}/consumer:pci:{address}"]
        target = f"devices/virtual/devlink/pci:0000:3b:00.0--pci:{address}"
        assert link == Link(f"../../../{target.removeprefix('devices/')}")
        assert f"{target}/consumer" in tree
    native = {each.address[-1]: each.native for each in functions.of(node) if each.supplier}
    assert native == {"1": "snd_hda_intel", "2": "xhci_hcd", "3": None}
