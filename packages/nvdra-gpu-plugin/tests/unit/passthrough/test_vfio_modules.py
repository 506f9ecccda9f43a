# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from nvdra_gpu_plugin.passthrough import vfio_modules
from nvdra_gpu_plugin.passthrough.vfio_modules import ModuleError, ModuleFiles, VfioModules
from nvdra_runtime.node.host import Host

GH200 = "pci:v000010DEd00002342sv000010DEsd000016EBbc03sc02i00"
H100 = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
DEBIAN_6_12 = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
GRACE = f"""\
alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5-vfio-pci
alias vfio_pci:broken nothing
{DEBIAN_6_12}"""


@pytest.mark.parametrize(
    ("aliases", "modalias", "expected"),
    [
        (DEBIAN_6_12, GH200, "vfio_pci"),
        (GRACE, GH200, "nvgrace_gpu_vfio_pci"),
        (GRACE, H100, "vfio_pci"),
        (GRACE, "pci:v000015B3d0000101Esv00000000sd00000000bc02sc00i00", "mlx5_vfio_pci"),
        (GRACE, "pci:unknown", "vfio_pci"),
        ("", H100, "vfio_pci"),
    ],
)
def test_the_module_with_the_fewest_wildcards_is_chosen(
    aliases: str, modalias: str, expected: str
) -> None:
    assert vfio_modules.choose(aliases, modalias) == expected


def test_the_first_of_equal_patterns_is_chosen() -> None:
    line = "alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i*"
    assert vfio_modules.choose(f"{line} first\n{line} second\n", GH200) == "first"


def test_a_module_is_available_if_it_is_loaded_built_in_or_can_be_loaded(tmp_path: Path) -> None:
    modules = tmp_path / "modules/6.12.1"
    modules.mkdir(parents=True)
    (modules / "modules.dep").write_text(
        "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz\n"
        "kernel/drivers/vfio/vfio.ko.xz:\n"
    )
    (modules / "modules.builtin").write_text("kernel/drivers/vfio/pci/mlx5/mlx5-vfio-pci.ko\n")
    (modules / "modules.alias").write_text(GRACE)
    host = Host(sys=tmp_path / "sys")
    found = ModuleFiles(host, tmp_path / "modules", "6.12.1").read()
    assert found == VfioModules(GRACE, frozenset({"vfio_pci", "vfio", "mlx5_vfio_pci"}))
    assert found.module_for(H100) == "vfio_pci"
    assert found.module_for(GH200) is None
    (tmp_path / "sys/module/nvgrace_gpu_vfio_pci").mkdir(parents=True)
    loaded = ModuleFiles(host, tmp_path / "modules", "6.12.1").read()
    assert loaded.module_for(GH200) == "nvgrace_gpu_vfio_pci"


def test_without_a_directory_of_modules_nothing_can_be_loaded(tmp_path: Path) -> None:
    host = Host(sys=tmp_path / "sys")
    assert ModuleFiles(host, tmp_path).read().module_for(H100) is None


def test_the_driver_of_a_module_is_its_name_with_either_dash() -> None:
    drivers = {"vfio-pci", "nvgrace_gpu_vfio_pci"}
    assert vfio_modules.driver_of("vfio_pci", drivers) == "vfio-pci"
    assert vfio_modules.driver_of("nvgrace_gpu_vfio_pci", drivers) == "nvgrace_gpu_vfio_pci"
    assert vfio_modules.driver_of("mlx5_vfio_pci", drivers) is None


def test_a_module_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    vfio_modules.load("vfio_pci", ("true",))
    with pytest.raises(ModuleError, match=r"sh -c .* ended with 3: FATAL: vfio_pci not found"):
        vfio_modules.load("vfio_pci", ("sh", "-c", "echo FATAL: $0 not found >&2; exit 3"))
    with pytest.raises(ModuleError, match="No such file"):
        vfio_modules.load("vfio_pci", (str(tmp_path / "modprobe"),))
