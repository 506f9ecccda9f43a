# SPDX-License-Identifier: Apache-2.0
import ctypes
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from nvdra_sim import installation, mig_changes
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.description import NodeDescription
from nvdra_sim.filesystem import driver_root
from nvdra_sim.filesystem.trees import ForeignFileError
from nvdra_sim.state_file import encoding, state
from nvdra_sim.testing.node_fixtures import MakeNode

REAL = {"render": {"nodes": "real"}}
TABLE = {"render": {"nodes": "table"}}


def installed(node: NodeDescription, below: Path) -> installation.Roots:
    roots = installation.Roots.below(below)
    installation.install(
        node,
        driver_root=roots.driver,
        proc_root=roots.proc,
        sys_root=roots.sys,
        dev_root=roots.dev,
    )
    return roots


def inodes(below: Path) -> dict[Path, int]:
    return {
        path: path.lstat().st_ino
        for path in below.rglob("*")
        if path.name != installation.INSTALLED_FILES
    }


@pytest.mark.parametrize("profile", hardware_catalog.profile_names())
def test_installing_and_uninstalling_a_profile_leaves_nothing(profile: str, tmp_path: Path) -> None:
    roots = installed(node_config.from_profile(profile, "node-0", TABLE), tmp_path / "node")
    assert (roots.proc / "devices").exists()
    installation.uninstall(driver_root=roots.driver)
    assert list(tmp_path.iterdir()) == []


def test_real_device_nodes_carry_the_numbers_of_the_description(tmp_path: Path) -> None:
    node = node_config.from_profile("dgx-h100-shuffled", "node-0", REAL)
    roots = installed(node, tmp_path / "node")
    for gpu in node.gpus:
        found = (roots.dev / f"nvidia{gpu.minor}").stat()
        assert stat.S_ISCHR(found.st_mode)
        assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (195, gpu.minor)
        assert stat.S_IMODE(found.st_mode) == 0o666
    card = (roots.dev / "dri/card1").stat()
    assert (card.st_gid, stat.S_IMODE(card.st_mode)) == (44, 0o660)
    installation.uninstall(driver_root=roots.driver)
    assert list(tmp_path.iterdir()) == []


def test_installing_again_changes_nothing(tmp_path: Path) -> None:
    node = node_config.from_profile("dgx-h100", "node-0", REAL)
    roots = installed(node, tmp_path)
    before = inodes(tmp_path)
    held = state.load(roots.driver / "lib/firmware/nvidia/580.95.05/gsp_nvdra_sim.bin")
    held.lose(node.gpus[3])
    installed(node, tmp_path)
    assert inodes(tmp_path) == before
    assert [gpu.lost for gpu in held.snapshot().gpus[:8]] == [0, 0, 0, 1, 0, 0, 0, 0]


def test_another_description_replaces_the_former_one(tmp_path: Path) -> None:
    installed(node_config.from_profile("dgx-h100", "node-0", REAL), tmp_path / "first")
    fresh = inodes(tmp_path / "first").keys()
    former = {"driver": {"version": "575.57.08"}, **REAL}
    installed(node_config.from_profile("t4", "node-0", former), tmp_path / "second")
    installed(node_config.from_profile("dgx-h100", "node-0", REAL), tmp_path / "second")
    assert {path.relative_to(tmp_path / "second") for path in inodes(tmp_path / "second")} == {
        path.relative_to(tmp_path / "first") for path in fresh
    }
    for roots in (tmp_path / "first", tmp_path / "second"):
        installation.uninstall(driver_root=roots / "driver")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_in_the_way_stops_the_installation_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").write_text("theirs")
    with pytest.raises(ForeignFileError, match="nvidia0"):
        installed(node_config.from_profile("t4", "node-0", REAL), tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["dev", "nvidia0"]


def test_what_others_put_beside_it_stays(tmp_path: Path) -> None:
    roots = installation.Roots.below(tmp_path)
    roots.dev.mkdir()
    (roots.dev / "null").write_text("")
    installed(node_config.from_profile("t4", "node-0", REAL), tmp_path)
    (roots.sys / "theirs").write_text("")
    installation.uninstall(driver_root=roots.driver)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "dev",
        "dev/null",
        "sys",
        "sys/theirs",
    ]


def test_uninstalling_nothing_is_no_error(tmp_path: Path) -> None:
    installation.uninstall(driver_root=tmp_path / "driver")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "asked", [{"fabric": {"follow_fm": True}}, {"mig": {"renumber_minor_on_toggle": True}}]
)
def test_a_description_that_the_library_cannot_simulate_is_refused_and_leaves_nothing(
    asked: dict[str, dict[str, bool]], tmp_path: Path
) -> None:
    node = node_config.from_profile("dgx-h100", "node-0", {**asked, **TABLE})
    with pytest.raises(encoding.UnsupportedError):
        installed(node, tmp_path / "node")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layout", "libraries", "programs"),
    [
        ("debian", f"usr/lib/{os.uname().machine}-linux-gnu", "usr/bin"),
        ("rhel", "usr/lib64", "usr/bin"),
        ("cos", "lib64", "bin"),
        ("talos", "lib", "bin"),
    ],
)
def test_a_layout_moves_libraries_and_programs(
    layout: str, libraries: str, programs: str, sim_node: MakeNode
) -> None:
    node = sim_node("t4", render={"layout": layout})
    assert node.library == node.roots.driver / libraries / "libnvidia-ml.so.1"
    assert node.smi == node.roots.driver / programs / "nvidia-smi"
    assert node.library.resolve().name == "libnvidia-ml.so.580.95.05"
    assert node.run(node.smi, "-L").stdout.count("Tesla T4") == 4


def test_the_loader_cache_names_the_drivers_libraries(sim_node: MakeNode) -> None:
    node = sim_node("t4", render={"ldcache": True})
    listing = node.run("/sbin/ldconfig", "-p", "-C", node.roots.driver / "etc/ld.so.cache")
    assert "libnvidia-ml.so.1" in listing.stdout
    assert "libcuda.so.1" in listing.stdout


def test_every_library_has_its_soname(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    libraries = {path.name for path in node.library.parent.rglob("*.so.*") if not path.is_symlink()}
    assert {"libcuda.so.580.95.05", "libvdpau_nvidia.so.580.95.05"} <= libraries
    for path in node.library.parent.rglob("*.so.*"):
        assert path.resolve(strict=True).read_bytes().startswith(b"\x7fELF")


def test_cuda_counts_the_gpus_that_nvml_shows(shared_node: MakeNode) -> None:
    node = shared_node("dgx-h100")
    program = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int();"
        "print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(n)), n.value,"
        " cuda.cuDriverGetVersion(ctypes.byref(n)), n.value)"
    )
    assert node.run("python3", "-c", program).stdout.split() == ["0", "0", "8", "0", "13000"]


def test_cuda_finds_no_device_on_a_node_without_gpus(shared_node: MakeNode) -> None:
    node = shared_node("none")
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    assert node.run("python3", "-c", program).stdout.strip() == "100"


def test_the_table_of_devices_lies_in_the_dev_root(shared_node: MakeNode) -> None:
    node = shared_node("a30")
    rows = json.loads((node.roots.dev / "devices.json").read_text())
    assert rows["/dev/nvidiactl"]["minor"] == 255
    assert [path.name for path in node.roots.dev.iterdir()] == ["devices.json"]


def test_the_library_in_a_driver_root_finds_its_node_by_itself(sim_node: MakeNode) -> None:
    first = sim_node("dgx-h100", name="first")
    second = sim_node("t4", name="second")
    for node, count in ((first, 8), (second, 4)):
        program = (
            f"import ctypes; nvml = ctypes.CDLL({str(node.library)!r}); n = ctypes.c_uint();"
            "nvml.nvmlInit_v2(); nvml.nvmlDeviceGetCount_v2(ctypes.byref(n)); print(n.value)"
        )
        command = ["python3", "-c", program]
        done = subprocess.run(command, env={"PATH": os.defpath}, capture_output=True, check=True)
        assert done.stdout == f"{count}\n".encode()


def test_ctypes_is_enough_to_load_a_placeholder(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    path = node.library.parent / "libnvidia-allocator.so.1"
    assert ctypes.CDLL(str(path))._name == str(path)


def test_files_of_mig_devices_made_later_stay_with_the_node_and_go_with_it(tmp_path: Path) -> None:
    node = node_config.from_profile("dgx-h100", "node-0", TABLE)
    roots = installed(node, tmp_path / "node")
    made = state.load(roots.driver / driver_root.state_path(node))
    with made.transaction() as now:
        now.gpus[2].mig_mode = 1
    instance = mig_changes.create(made, node.gpus[2], "1g.10gb", 0)
    access = roots.proc / f"driver/nvidia/capabilities/gpu2/mig/gi{instance}/ci0/access"
    assert access.exists()
    installed(node, tmp_path / "node")
    assert access.exists()
    installation.uninstall(driver_root=roots.driver)
    assert list(tmp_path.iterdir()) == []


def test_another_description_takes_the_files_of_mig_devices_away(tmp_path: Path) -> None:
    first, second = (node_config.from_profile("dgx-h100", name, TABLE) for name in ("a", "b"))
    roots = installed(first, tmp_path / "node")
    made = state.load(roots.driver / driver_root.state_path(first))
    with made.transaction() as now:
        now.gpus[2].mig_mode = 1
    mig_changes.create(made, first.gpus[2], "1g.10gb", 0)
    installed(second, tmp_path / "node")
    assert not list(roots.proc.glob("driver/nvidia/capabilities/gpu*"))
