# SPDX-License-Identifier: Apache-2.0
"""Rules make running processes fail or wait, from their next call on (nvml-simulator.md §11)."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from nvdra_sim.description import Fault
from nvdra_sim.state_file import encoding, state
from nvdra_sim.testing.nvml_fixtures import NvmlOn


def fault(function: str, **fields: Any) -> Fault:
    plain = {
        "gpu": None,
        "result": None,
        "activation_status": None,
        "times": None,
        "after_calls": 0,
        "probability": 1.0,
        "delay_ms": 0,
        "do_work": False,
        "abort": False,
    }
    return Fault(function=function, **{**plain, **fields})


def codes_of_names() -> list[int]:
    """What asking each GPU for its name answers."""
    count = pynvml.nvmlDeviceGetCount()
    return [code_of_name(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


def code_of_name(handle: Any) -> int:
    try:
        pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def test_a_rule_fails_the_calls_of_its_function_until_it_is_removed(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    rule = node.add_rule(fault("nvmlDeviceGetName", result=999))
    assert codes_of_names() == [999] * 4
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    node.remove_rule(rule)
    assert codes_of_names() == [0] * 4


def test_a_rule_for_a_gpu_leaves_the_others_alone(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceGet*", gpu=2, result=15))
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1, 3)]
    assert [pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles] == [0, 1, 3]
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByUUID(node.gpu("2").uuid)


def test_a_rule_with_a_number_of_times_is_spent_after_them(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceGetName", result=23, times=3))
    assert codes_of_names() == [23, 23, 23, 0]
    (rule,) = node.rules()
    assert (rule.hits, rule.is_spent) == (3, True)


def test_init_fails_as_often_as_a_rule_says(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", initialize=False)
    node.add_rule(fault("nvmlInit*", result=18, times=2))
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
            pynvml.nvmlInit()
    pynvml.nvmlInit()
    assert codes_of_names() == [0] * 4


def test_the_first_rule_that_fails_decides(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDevice*Name", result=4, gpu=1))
    node.add_rule(fault("nvmlDeviceGetName", result=20))
    assert codes_of_names() == [20, 4, 20, 20]


def test_a_delay_slows_a_call_and_leaves_its_answer(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceGetName", gpu=0, delay_ms=30))
    begin = time.monotonic()
    assert codes_of_names() == [0] * 4
    assert time.monotonic() - begin >= 0.03
    assert [rule.hits for rule in node.rules()] == [1]


def test_a_call_hangs_until_its_rule_is_removed(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    rule = node.add_rule(fault("nvmlDeviceGetName", delay_ms=-1))
    handle, names = pynvml.nvmlDeviceGetHandleByIndex(0), []
    caller = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(handle)))
    caller.start()
    caller.join(timeout=0.05)
    assert caller.is_alive()
    node.remove_rule(rule)
    caller.join(timeout=10)
    assert names == ["Tesla T4"]


def test_an_init_finds_its_node_while_a_call_of_the_session_before_still_runs(
    nvml_on: NvmlOn,
) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceGetName", delay_ms=-1))
    handle, found = pynvml.nvmlDeviceGetHandleByIndex(0), []
    call = threading.Thread(target=lambda: found.append(code_of_name(handle)), daemon=True)
    call.start()
    call.join(timeout=0.05)
    assert call.is_alive()
    nvml_on("dgx-h100")
    assert pynvml.nvmlDeviceGetCount() == 8
    call.join(timeout=10)
    assert not call.is_alive()


def test_rules_of_the_node_file_are_in_force_from_the_start(nvml_on: NvmlOn) -> None:
    node = nvml_on(
        "t4",
        faults=[{"match": {"function": "nvmlDeviceGetName", "gpu": 1}, "result": "IN_USE"}],
    )
    assert codes_of_names() == [0, 19, 0, 0]
    assert [rule.hits for rule in node.rules()] == [1]


def test_a_latency_class_slows_its_functions_only(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", latency={"handle_by_uuid": 30})
    uuid = node.gpu("3").uuid
    begin = time.monotonic()
    pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert time.monotonic() - begin >= 0.03
    # One call of another class may be held up by the machine, not every one of them.
    assert min(duration(pynvml.nvmlDeviceGetHandleByIndex, 3) for _ in range(20)) < 0.03


def duration(function: Callable[..., object], *arguments: object) -> float:
    begin = time.monotonic()
    function(*arguments)
    return time.monotonic() - begin


def test_a_spent_rule_makes_room_for_another(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceGetName", result=4, times=1))
    for _ in range(31):
        node.add_rule(fault("nvmlDeviceGetSerial", result=4))
    with pytest.raises(state.StateError, match="there are 32 rules"):
        node.add_rule(fault("nvmlDeviceGetSerial", result=4))
    assert codes_of_names() == [4, 0, 0, 0]
    newest = node.add_rule(fault("nvmlDeviceGetName", result=5))
    assert newest == 33
    assert codes_of_names() == [5] * 4


@pytest.mark.parametrize(
    "fields",
    [
        {"activation_status": 19},
        {"result": 0},
    ],
)
def test_a_rule_that_would_be_without_effect_is_refused(
    nvml_on: NvmlOn, fields: dict[str, Any]
) -> None:
    node = nvml_on("t4")
    with pytest.raises(encoding.UnsupportedError, match=next(iter(fields))):
        node.add_rule(fault("nvmlDeviceGetName", **fields))


def test_a_rule_for_no_function_is_refused(nvml_on: NvmlOn) -> None:
    with pytest.raises(state.StateError, match="no NVML function matches 'nvmlDeviceGetNmae'"):
        nvml_on("t4").add_rule(fault("nvmlDeviceGetNmae", result=4))


def test_removing_a_rule_that_is_not_there_says_so(nvml_on: NvmlOn) -> None:
    with pytest.raises(state.StateError, match="there is no rule 7"):
        nvml_on("t4").remove_rule(7)
