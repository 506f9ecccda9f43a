"""The switch between the MIG modes, as unmodified pynvml sees it.

Source: docs/reference/nvml-simulator.md §7.2.
"""

from typing import Any

import pynvml
import pytest
from nvdra_sim import incidents
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
