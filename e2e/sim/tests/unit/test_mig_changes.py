# SPDX-License-Identifier: Apache-2.0
"""MIG instances that an administrator creates and destroys while programs use NVML.

Source: docs/reference/nvml-simulator.md §7, §8, §14.4.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvdra_sim import mig_changes
from nvdra_sim.state_file.state import State, StateError
from nvdra_sim.testing.nvml_fixtures import NvmlOn

MIG_CHANGE = 0x100


def node_with(nvml_on: NvmlOn, *instances: dict[str, Any], **mig: Any) -> State:
    entry = {"mode": True, "instances": list(instances)}
    boards = [
        {"model": "h100", "bus_id": "0000:10:00.0", "mig": entry},
        {"model": "h100", "bus_id": "0000:20:00.0"},
    ]
    return nvml_on(None, gpus=boards, mig=mig)


def profiles() -> list[str]:
    """The MIG devices of the first GPU by the names that NVML gives them."""
    board = pynvml.nvmlDeviceGetHandleByIndex(0)
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)
        except pynvml.NVMLError_NotFound:
            continue
        found.append(pynvml.nvmlDeviceGetName(device).rpartition(" ")[2])
    return found


def test_a_created_instance_is_a_device_at_once(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on, {"profile": "1g.10gb", "start": 6, "compute": ["1c"]})
    assert profiles() == ["1g.10gb"]
    assert mig_changes.create(node, node.gpu("0"), "3g.40gb", 0) == 1
    assert profiles() == ["3g.40gb", "1g.10gb"]
    assert mig_changes.create(node, node.gpu("0"), "2g.20gb", 4, ["1c", "1c"]) == 5
    assert profiles() == ["3g.40gb", "1c.2g.20gb", "1c.2g.20gb", "1g.10gb"]


def test_a_gpu_instance_alone_is_no_device(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    mig_changes.create(node, node.gpu("0"), "3g.40gb", 0, [])
    assert profiles() == []


def test_the_handle_of_a_destroyed_device_is_refused_also_when_one_has_its_place(
    nvml_on: NvmlOn,
) -> None:
    node = node_with(nvml_on, uuid="fresh")
    gpu = node.gpu("0")
    instance = mig_changes.create(node, gpu, "1g.10gb", 0)
    board = pynvml.nvmlDeviceGetHandleByIndex(0)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, 0)
    before = pynvml.nvmlDeviceGetUUID(device)
    mig_changes.destroy(node, gpu, instance)
    assert profiles() == []
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMemoryInfo(device)
    mig_changes.create(node, gpu, "1g.10gb", 0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMemoryInfo(device)
    again = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, 0)
    assert pynvml.nvmlDeviceGetUUID(again) != before


def test_only_the_compute_instance_goes_if_it_is_destroyed_alone(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    gpu = node.gpu("0")
    instance = mig_changes.create(node, gpu, "2g.20gb", 0, ["1c", "1c"])
    mig_changes.destroy_compute(node, gpu, instance, 0)
    assert profiles() == ["1c.2g.20gb"]
    with pytest.raises(StateError, match="no compute instance"):
        mig_changes.destroy_compute(node, gpu, instance, 0)


def test_every_change_is_an_event_of_the_gpu(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    events, board = pynvml.nvmlEventSetCreate(), pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(board, MIG_CHANGE, events)
    instance = mig_changes.create(node, node.gpu("0"), "1g.10gb", 0)
    mig_changes.destroy(node, node.gpu("0"), instance)
    for _ in range(2):
        event = pynvml.nvmlEventSetWait_v2(events, 0)
        assert (event.eventType, event.gpuInstanceId) == (MIG_CHANGE, 0xFFFFFFFF)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)
    pynvml.nvmlEventSetFree(events)


@pytest.mark.parametrize(
    ("gpu", "profile", "start", "problem"),
    [
        ("1", "1g.10gb", 0, "not in MIG mode"),
        ("0", "1g.5gb", 0, "is not one of"),
        ("0", "3g.40gb", 2, "starts at one of 0, 4"),
        ("0", "1g.10gb", 1, "overlaps 3g.40gb at 0"),
    ],
)
def test_what_the_hardware_refuses_is_refused(
    nvml_on: NvmlOn, gpu: str, profile: str, start: int, problem: str
) -> None:
    node = node_with(nvml_on, {"profile": "3g.40gb", "start": 0, "compute": ["3c"]})
    with pytest.raises(StateError, match=problem):
        mig_changes.create(node, node.gpu(gpu), profile, start)
    assert profiles() == ["3g.40gb"]


def test_the_command_keeps_the_capability_files_in_step(nvml_on: NvmlOn, tmp_path: Path) -> None:
    node = node_with(nvml_on)
    proc = tmp_path / "proc"
    proc.mkdir()

    def simctl(*command: str) -> None:
        argv = [str(Path(sys.executable).with_name("nvdra-simctl")), "mig", *command]
        options = [f"--state={node.path}", f"--proc-root={proc}"]
        subprocess.run([*argv, *options], check=True, capture_output=True)

    def files() -> list[str]:
        below = proc / "driver/nvidia/capabilities/gpu0/mig"
        return sorted(str(path.relative_to(below)) for path in below.rglob("access"))

    simctl("create", "0", "3g.40gb", "4", "--compute", "2c,1c")
    assert files() == ["gi2/access", "gi2/ci0/access", "gi2/ci1/access"]
    text = (proc / "driver/nvidia/capabilities/gpu0/mig/gi2/ci1/access").read_text()
    assert "DeviceFileMinor: 23\n" in text
    simctl("destroy", "0", "--gi", "2", "--ci", "0")
    assert files() == ["gi2/access", "gi2/ci1/access"]
    simctl("destroy", "0", "--gi", "2")
    assert files() == []
