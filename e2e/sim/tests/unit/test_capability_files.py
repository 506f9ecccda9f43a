# SPDX-License-Identifier: Apache-2.0
"""The capability files of MIG instances, whoever makes the instances.

Source: docs/reference/nvml-simulator.md §14.4.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvdra_sim import incidents, mig_changes
from nvdra_sim.state_file.state import State, StateError
from nvdra_sim.testing.nvml_fixtures import NvmlOn

CAPABILITIES = "driver/nvidia/capabilities"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A simulated /proc with files that are not of MIG instances."""
    config = tmp_path / "proc" / CAPABILITIES / "mig/config"
    config.parent.mkdir(parents=True)
    config.write_text("")
    return tmp_path / "proc"


def node_with(nvml_on: NvmlOn, proc: Path, **sections: Any) -> State:
    boards = [
        {"model": "h100", "bus_id": "0000:10:00.0", "mig": {"mode": True}, "minor": 3},
        {"model": "h100", "bus_id": "0000:20:00.0", "mig": {"mode": True}, "minor": 1},
    ]
    node = nvml_on(None, gpus=boards, **sections)
    node.move_proc_root(proc)
    return node


def files(proc: Path) -> Mapping[str, tuple[str, int]]:
    """Content and mode of all files below the capabilities of GPUs."""
    top = proc / CAPABILITIES
    return {
        str(path.relative_to(top)): (path.read_text(), path.stat().st_mode & 0o777)
        for path in sorted(top.glob("gpu*/**/*"))
        if path.is_file()
    }


def make(profile: int, compute: int, board: int = 0) -> Any:
    instance = pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(board), profile)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, compute)
    return instance


def destroy(instance: Any) -> None:
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_nvml_writes_the_files_that_simctl_writes(nvml_on: NvmlOn, proc: Path) -> None:
    node = node_with(nvml_on, proc)
    make(9, 1)  # 3g.40gb with 2c at 0
    by_nvml = files(proc)
    assert set(by_nvml) == {"gpu3/mig/gi1/access", "gpu3/mig/gi1/ci0/access"}
    destroy(pynvml.nvmlDeviceGetGpuInstanceById(pynvml.nvmlDeviceGetHandleByIndex(0), 1))
    assert not list((proc / CAPABILITIES).glob("gpu*"))
    mig_changes.create(node, node.gpu("0"), "3g.40gb", 0, ["2c"])
    assert files(proc) == by_nvml
    # 3 + 135 * minor + 9 * GPU instance, and one more than that and the compute instance.
    assert by_nvml["gpu3/mig/gi1/ci0/access"] == (
        "DeviceFileMinor: 418\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
        0o444,
    )


def test_the_files_are_there_when_the_call_returns_and_gone_after_the_other(
    nvml_on: NvmlOn, proc: Path
) -> None:
    node_with(nvml_on, proc)
    first, second = make(19, 0), make(19, 0, board=1)
    assert set(files(proc)) == {
        *("gpu3/mig/gi7/access", "gpu3/mig/gi7/ci0/access"),
        *("gpu1/mig/gi7/access", "gpu1/mig/gi7/ci0/access"),
    }
    destroy(first)
    assert set(files(proc)) == {"gpu1/mig/gi7/access", "gpu1/mig/gi7/ci0/access"}
    destroy(second)
    assert files(proc) == {}
    assert (proc / CAPABILITIES / "mig/config").exists()


@pytest.mark.parametrize("event", ["reboot", "reset", "load_driver"])
def test_instances_that_a_boot_ends_take_their_files_along(
    nvml_on: NvmlOn, proc: Path, event: str
) -> None:
    node = node_with(nvml_on, proc)
    make(19, 0)
    if event == "reset":
        incidents.reset(node, node.gpu("0"))
    else:
        getattr(incidents, event)(node)
    assert files(proc) == {}


def test_a_boot_of_the_machine_removes_the_files(nvml_on: NvmlOn, proc: Path) -> None:
    """The first init after it does, as it resets the GPUs."""
    node = node_with(nvml_on, proc)
    make(19, 0)
    with node.transaction() as now:
        now.boot_id = b"00000000-0000-0000-0000-000000000000"
    assert files(proc)
    pynvml.nvmlInit()
    assert files(proc) == {}
    assert pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0)) == [0, 0]


def test_a_change_repairs_what_a_killed_one_left(nvml_on: NvmlOn, proc: Path) -> None:
    node_with(nvml_on, proc)
    stray = proc / CAPABILITIES / "gpu3/mig/gi2"
    (stray / "ci0").mkdir(parents=True)
    (stray / "access").write_text("")
    kept = make(19, 0)
    wanted = files(proc)
    assert set(wanted) == {"gpu3/mig/gi7/access", "gpu3/mig/gi7/ci0/access"}
    (proc / CAPABILITIES / "gpu3/mig/gi7/ci0/access").unlink()
    pynvml.nvmlGpuInstanceDestroy(
        pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 19)
    )
    assert files(proc) == wanted
    destroy(kept)


def test_where_there_is_no_such_proc_instances_are_made_without(
    nvml_on: NvmlOn, tmp_path: Path
) -> None:
    """A container in which it is not mounted."""
    node = node_with(nvml_on, tmp_path / "elsewhere")
    make(19, 0)
    assert not (tmp_path / "elsewhere").exists()
    assert node.snapshot().tables[0].instances[7].in_use


def test_a_change_whose_files_cannot_be_written_is_not_made(nvml_on: NvmlOn, proc: Path) -> None:
    node = node_with(nvml_on, proc)
    (proc / CAPABILITIES / "gpu3").write_text("in the way")
    before = node.generation
    with pytest.raises(pynvml.NVMLError_OperatingSystem):
        make(19, 0)
    assert node.generation == before
    (proc / CAPABILITIES / "gpu3").unlink()
    make(19, 0)


def test_the_state_file_says_where_the_files_are(nvml_on: NvmlOn, tmp_path: Path) -> None:
    node = nvml_on("t4")
    assert node.proc_root is None
    node.move_proc_root(tmp_path)
    assert node.proc_root == tmp_path
    with pytest.raises(StateError, match="longer than 1023"):
        node.move_proc_root(tmp_path / "x" / ("y" * 1024))
