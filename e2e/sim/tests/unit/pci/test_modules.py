# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
from nvdra_sim.configuration import node_config
from nvdra_sim.description import NodeDescription
from nvdra_sim.filesystem import device_nodes, sysfs
from nvdra_sim.pci import modules

LEGACY: dict[str, Any] = {"iommu": {"iommufd": False}}


def node(profile: str = "t4", **sections: Any) -> NodeDescription:
    return node_config.from_profile(profile, "node-0", {"node": sections})


def test_a_module_brings_what_it_needs_and_what_those_ask_for() -> None:
    assert modules.with_needs("vfio_pci", node(**LEGACY)) == {
        "vfio",
        "vfio_iommu_type1",
        "vfio_pci_core",
        "vfio_pci",
    }
    assert modules.with_needs("vfio_pci", node()) >= {"iommufd"}


def test_nothing_of_vfio_is_there_before_its_modules() -> None:
    for loaded in (False, True):
        described = node(vfio={"loaded": loaded})
        found = {*sysfs.tree(described), *device_nodes.tree(described)}
        for path in ("bus/pci/drivers/vfio-pci/bind", "module/vfio_pci", "vfio/vfio", "iommu"):
            assert (path in found) == loaded, path


@pytest.mark.parametrize(
    ("profile", "device", "expected"),
    [("gb200-nvl72", 0x2941, "nvgrace_gpu_vfio_pci"), ("t4", 0x1EB8, None)],
)
def test_the_module_for_grace_has_an_alias_of_its_own(
    profile: str, device: int, expected: str | None
) -> None:
    described = node(profile)
    assert described.gpus[0].pci_device == device
    alias = f"vfio_pci:v000010DEd{device:08X}sv000010DEsd00000000bc03sc02i00"
    found = modules.resolve(alias, described)
    assert found == (("vfio_pci", expected) if expected else ("vfio_pci",))


def test_a_missing_module_takes_those_along_that_need_it() -> None:
    described = node(vfio={"missing": ["vfio_pci_core"]})
    assert modules.available(described) == ("iommufd", "vfio", "vfio_iommu_type1")
    assert modules.resolve("vfio-pci", described) == ()
    assert " vfio_pci" not in modules.aliases(described)
    without = node("gb200-nvl72", vfio={"missing": ["nvgrace_gpu_vfio_pci"]})
    assert modules.resolve("nvgrace-gpu-vfio-pci", without) == ()
    assert modules.resolve("vfio-pci", without) == ("vfio_pci",)


def test_a_gpu_cannot_be_bound_at_boot_to_a_driver_that_is_not_there() -> None:
    passed = {"gpus": [{"index": 0, "bound_driver": "vfio-pci"}]}
    for vfio in ({"loaded": False}, {"missing": ["vfio_pci"]}):
        sections = {"node": {"vfio": vfio}, "overrides": passed}
        with pytest.raises(node_config.ConfigError, match=r"node\.vfio"):
            node_config.from_profile("t4", "node-0", sections)
