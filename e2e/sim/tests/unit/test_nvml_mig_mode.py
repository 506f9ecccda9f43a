# SPDX-License-Identifier: Apache-2.0
"""The switch between the MIG modes, as unmodified pynvml sees it.

Source: docs/reference/nvml-simulator.md §7.2.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest
from nvdra_sim import incidents
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file.state import State
from nvdra_sim.testing.nvml_fixtures import NvmlOn

RESET_REQUIRED, IN_USE = 16, 19
CUT = [{"profile": "3g.40gb", "start": 4, "compute": ["3c"]}]


def boards(nvml_on: NvmlOn, **mig: Any) -> State:
    """An Ampere board, a Hopper one, a Hopper one that is cut, and one without MIG."""
    models: list[dict[str, Any]] = [
        {"model": "a100-40"},
        {"model": "h100"},
        {"model": "h100", "mig": {"mode": True, "instances": CUT}},
        {"model": "t4"},
    ]
    gpus = [{**model, "bus_id": f"0000:{10 + i}:00.0"} for i, model in enumerate(models)]
    return nvml_on(None, gpus=gpus, mig=mig)


def handle(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def switch(index: int, mode: int) -> int:
    """Switch the mode, and return the activation status."""
    return int(pynvml.nvmlDeviceSetMigMode(handle(index), mode))


def modes(index: int) -> list[int]:
    """Current and pending mode."""
    return list(pynvml.nvmlDeviceGetMigMode(handle(index)))


def test_hopper_switches_at_once_and_back(nvml_on: NvmlOn) -> None:
    boards(nvml_on)
    assert (switch(1, 1), modes(1)) == (0, [1, 1])
    assert (switch(1, 1), modes(1)) == (0, [1, 1])
    assert (switch(1, 0), modes(1)) == (0, [0, 0])


def test_ampere_switches_with_its_next_reset(nvml_on: NvmlOn) -> None:
    node = boards(nvml_on)
    assert (switch(0, 1), modes(0)) == (RESET_REQUIRED, [0, 1])
    assert (switch(0, 0), modes(0)) == (0, [0, 0])
    assert switch(0, 1) == RESET_REQUIRED
    incidents.reset(node, node.gpu("0"))
    assert modes(0) == [1, 1]


def test_ampere_may_reset_itself(nvml_on: NvmlOn) -> None:
    boards(nvml_on, ampere_reset="auto")
    assert (switch(0, 1), modes(0)) == (0, [1, 1])


def test_processes_and_instances_leave_the_switch_pending(nvml_on: NvmlOn) -> None:
    node = boards(nvml_on)
    incidents.add_process(node, node.gpu("1"), 4711)
    assert (switch(1, 1), modes(1)) == (IN_USE, [0, 1])
    assert (switch(2, 0), modes(2)) == (IN_USE, [1, 0])


def test_a_switch_may_be_refused(nvml_on: NvmlOn) -> None:
    boards(nvml_on)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        switch(3, 1)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        switch(1, 2)


# Other processes that have the GPU open (NVML gives no list of them)

CLIENT = f"""
import ctypes, pynvml
ctypes.CDLL({str(nvml_library.build())!r}, ctypes.RTLD_GLOBAL)
pynvml.nvmlInit()
board = pynvml.nvmlDeviceGetHandleByIndex(%d)
pynvml.nvmlDeviceGetName(board)
print("ready", flush=True)
input()
"""


@contextmanager
def client_of(index: int) -> Iterator[None]:
    """Another process with a handle of the GPU, such as an exporter."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT % index],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.communicate("\n")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("blocked_by", "hopper"), [("ampere", (0, [1, 1])), ("all", (IN_USE, [0, 1]))]
)
def test_another_client_keeps_an_ampere_gpu_in_its_mode_and_perhaps_a_newer_one(
    nvml_on: NvmlOn, blocked_by: str, hopper: tuple[int, list[int]]
) -> None:
    boards(nvml_on, switch_blocked_by_clients=blocked_by, ampere_reset="auto")
    with client_of(0):
        assert (switch(0, 1), modes(0)) == (IN_USE, [0, 1])
    with client_of(1):
        assert (switch(1, 1), modes(1)) == hopper
    assert [(switch(index, 1), modes(index)) for index in (0, 1)] == [(0, [1, 1])] * 2


def test_own_handles_event_sets_and_persistence_mode_are_not_in_the_way(nvml_on: NvmlOn) -> None:
    boards(nvml_on, switch_blocked_by_clients="all", ampere_reset="auto")
    for index in (0, 1):
        pynvml.nvmlDeviceSetPersistenceMode(handle(index), 1)
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(handle(index), 0x8, events)
        assert (switch(index, 1), modes(index)) == (0, [1, 1])
        pynvml.nvmlEventSetFree(events)


def test_a_busy_gpu_may_be_told_by_the_return_code(nvml_on: NvmlOn) -> None:
    node = boards(nvml_on, busy_switch="return_code")
    incidents.add_process(node, node.gpu("1"), 4711)
    for index, mode in ((1, 1), (2, 0)):
        with pytest.raises(pynvml.NVMLError_InUse):
            switch(index, mode)
    assert (modes(1), modes(2)) == ([0, 0], [1, 1])
    incidents.remove_process(node, node.gpu("1"), 4711)
    assert (switch(1, 1), modes(1)) == (0, [1, 1])


def test_a_vgpu_guest_cannot_switch(nvml_on: NvmlOn) -> None:
    nvml_on(None, gpus=[{"model": "h100", "bus_id": "0000:10:00.0", "virtualization": 2}])
    with pytest.raises(pynvml.NVMLError_NotSupported):
        switch(0, 1)


@pytest.mark.parametrize(("index", "after"), [(0, [1, 1]), (1, [0, 0])])
def test_the_mode_outlives_a_reboot_on_ampere_only(
    nvml_on: NvmlOn, index: int, after: list[int]
) -> None:
    node = boards(nvml_on, ampere_reset="auto")
    switch(index, 1)
    incidents.reboot(node)
    assert modes(index) == after
