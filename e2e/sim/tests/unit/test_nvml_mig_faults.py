# SPDX-License-Identifier: Apache-2.0
"""Faults of MIG changes: each call may fail, hang, lose its answer or kill its caller.

Source: docs/reference/nvml-simulator.md §7.2, §11.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from nvdra_sim import incidents
from nvdra_sim.description import Fault
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import encoding
from nvdra_sim.state_file.state import State
from nvdra_sim.testing.nvml_fixtures import NvmlOn

SUCCESS, LOST, IN_USE, RESOURCES, UNKNOWN = 0, 15, 19, 23, 999
CHANGES = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstance",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)


def fault(function: str, **fields: Any) -> Fault:
    plain = {
        "gpu": None, "result": None, "activation_status": None, "times": None, "after_calls": 0,
        "probability": 1.0, "delay_ms": 0, "do_work": False, "abort": False,
    }  # fmt: skip
    return Fault(function=function, **{**plain, **fields})


def node_on(nvml_on: NvmlOn, **sections: Any) -> State:
    """Two H100 in MIG mode, and one that is not."""
    modes = [{"mode": True}, {"mode": True}, {"mode": False}]
    boards = [
        {"model": "h100", "bus_id": f"0000:{10 + place}:00.0", "mig": mode}
        for place, mode in enumerate(modes)
    ]
    return nvml_on(None, gpus=boards, **sections)


def gpu(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def code(call: Callable[..., Any], *arguments: Any) -> int:
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return SUCCESS


def prepared(function: str) -> Callable[[], object]:
    """A call of the function that succeeds without faults."""
    if function == "nvmlDeviceSetMigMode":
        board = gpu(2)
        return lambda: pynvml.nvmlDeviceSetMigMode(board, 1)
    board = gpu()
    if function == "nvmlDeviceCreateGpuInstance":
        return lambda: pynvml.nvmlDeviceCreateGpuInstance(board, 9)
    instance = pynvml.nvmlDeviceCreateGpuInstance(board, 9)
    if function == "nvmlGpuInstanceCreateComputeInstance":
        return lambda: pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    if function == "nvmlGpuInstanceDestroy":
        return lambda: pynvml.nvmlGpuInstanceDestroy(instance)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    return lambda: pynvml.nvmlComputeInstanceDestroy(compute)


def hardware(node: State) -> tuple[bytes, bytes]:
    now = node.snapshot()
    return bytes(now.tables), bytes(now.gpus)


@pytest.mark.parametrize("function", CHANGES)
def test_a_change_that_fails_changes_nothing(nvml_on: NvmlOn, function: str) -> None:
    node = node_on(nvml_on)
    call, before = prepared(function), hardware(node)
    node.add_rule(fault(function, result=UNKNOWN, times=2))
    assert [code(call), code(call)] == [UNKNOWN, UNKNOWN]
    assert hardware(node) == before
    assert code(call) == SUCCESS
    assert hardware(node) != before


@pytest.mark.parametrize("function", CHANGES)
def test_a_change_whose_answer_is_lost_is_made(nvml_on: NvmlOn, function: str) -> None:
    node = node_on(nvml_on)
    call, before = prepared(function), hardware(node)
    node.add_rule(fault(function, result=UNKNOWN, do_work=True, times=1))
    assert code(call) == UNKNOWN
    assert hardware(node) != before


@pytest.mark.parametrize("function", CHANGES)
def test_a_change_hangs_until_its_rule_is_removed(nvml_on: NvmlOn, function: str) -> None:
    node = node_on(nvml_on)
    call, before = prepared(function), hardware(node)
    rule = node.add_rule(fault(function, delay_ms=-1))
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(code(call)))
    caller.start()
    caller.join(timeout=0.05)
    assert caller.is_alive()
    assert hardware(node) == before
    assert code(pynvml.nvmlDeviceSetPersistenceMode, gpu(1), 1) == SUCCESS  # others go on
    node.remove_rule(rule)
    caller.join(timeout=10)
    assert answers == [SUCCESS]


@pytest.mark.parametrize("function", CHANGES)
def test_a_gpu_that_is_lost_during_a_change_is_told_and_unchanged(
    nvml_on: NvmlOn, function: str
) -> None:
    node = node_on(nvml_on)
    call = prepared(function)
    rule = node.add_rule(fault(function, delay_ms=-1))
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(code(call)))
    caller.start()
    while node.rules()[0].hits == 0:
        time.sleep(0.001)
    for board in ("0", "2"):
        node.lose(node.gpu(board))
    before = hardware(node)
    node.remove_rule(rule)
    caller.join(timeout=10)
    assert answers == [LOST]
    assert hardware(node) == before


def test_a_gpu_that_is_lost_between_the_calls_keeps_the_gpu_instance(nvml_on: NvmlOn) -> None:
    node = node_on(nvml_on)
    board = gpu()
    instance = pynvml.nvmlDeviceCreateGpuInstance(board, 9)
    node.lose(node.gpu("0"))
    assert code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 2) == LOST
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == LOST
    node.restore(node.gpu("0"))
    found = pynvml.nvmlDeviceGetGpuInstanceById(board, 1)
    assert code(pynvml.nvmlGpuInstanceDestroy, found) == SUCCESS


def test_the_compute_instance_may_fail_after_the_gpu_instance_was_made(nvml_on: NvmlOn) -> None:
    node = node_on(nvml_on)
    node.add_rule(fault("nvmlGpuInstanceCreateComputeInstance*", result=RESOURCES, times=1, gpu=0))
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(), 9)
    assert code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 2) == RESOURCES
    assert code(pynvml.nvmlDeviceGetGpuInstanceById, gpu(), 1) == SUCCESS
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == SUCCESS


def test_a_gpu_instance_may_be_in_use_for_a_while_after_its_compute_instance_is_gone(
    nvml_on: NvmlOn,
) -> None:
    node = node_on(nvml_on)
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(), 9)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    node.add_rule(fault("nvmlGpuInstanceDestroy", result=IN_USE, times=3))
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == SUCCESS
    answers = [code(pynvml.nvmlGpuInstanceDestroy, instance) for _ in range(4)]
    assert answers == [IN_USE, IN_USE, IN_USE, SUCCESS]


@pytest.mark.parametrize(("do_work", "made"), [(False, 0), (True, 1)])
def test_a_caller_may_die_before_or_after_the_work(
    nvml_on: NvmlOn, do_work: bool, made: int
) -> None:
    node = node_on(nvml_on)
    node.add_rule(fault("nvmlDeviceCreateGpuInstance", gpu=0, abort=True, do_work=do_work))
    script = f"""
import ctypes, pynvml
ctypes.CDLL({str(nvml_library.build())!r}, ctypes.RTLD_GLOBAL)
pynvml.nvmlInit()
pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -9
    assert sum(record.in_use for record in node.snapshot().tables[0].instances) == made
    assert code(pynvml.nvmlDeviceCreateGpuInstance, gpu(1), 9) == SUCCESS


# The activation status


def switch(mode: int = 1) -> int:
    return int(pynvml.nvmlDeviceSetMigMode(gpu(2), mode))


def modes() -> list[int]:
    return list(pynvml.nvmlDeviceGetMigMode(gpu(2)))


def test_a_switch_may_succeed_with_a_bad_activation_status(nvml_on: NvmlOn) -> None:
    node = node_on(nvml_on)
    node.add_rule(fault("nvmlDeviceSetMigMode", activation_status=IN_USE, times=1))
    assert (switch(), modes()) == (IN_USE, [0, 1])
    assert (switch(), modes()) == (SUCCESS, [1, 1])


def test_a_switch_may_be_made_and_told_to_have_failed(nvml_on: NvmlOn) -> None:
    node = node_on(nvml_on)
    rule = fault("nvmlDeviceSetMigMode", activation_status=UNKNOWN, do_work=True, result=SUCCESS)
    node.add_rule(rule)
    assert (switch(), modes()) == (UNKNOWN, [1, 1])
    assert node.rules()[0].fault == rule.model_copy(update={"result": SUCCESS})


def test_a_node_file_may_give_an_activation_status(nvml_on: NvmlOn) -> None:
    match = {"function": "nvmlDeviceSetMigMode", "gpu": 2}
    rule = {"match": match, "result": "SUCCESS", "activation_status": "IN_USE"}
    node_on(nvml_on, faults=[rule])
    assert (switch(), modes()) == (IN_USE, [0, 1])


@pytest.mark.parametrize("fields", [{"result": SUCCESS}, {"activation_status": IN_USE}])
def test_a_rule_without_effect_is_refused(nvml_on: NvmlOn, fields: dict[str, Any]) -> None:
    node = node_on(nvml_on)
    function = "nvmlGpuInstanceDestroy"
    with pytest.raises(encoding.UnsupportedError, match=next(iter(fields))):
        node.add_rule(fault(function, **fields))


# Latency


def test_each_change_takes_the_time_of_its_class(nvml_on: NvmlOn) -> None:
    node_on(nvml_on, latency={"gi_create": 30, "gi_destroy": 60, "mig_mode": 90})

    def duration(call: Callable[[], object]) -> float:
        begin = time.monotonic()
        call()
        return time.monotonic() - begin

    assert duration(switch) >= 0.09
    assert duration(prepared("nvmlDeviceCreateGpuInstance")) >= 0.03
    assert duration(prepared("nvmlGpuInstanceDestroy")) >= 0.06


def test_a_slow_creation_keeps_nobody_waiting(nvml_on: NvmlOn) -> None:
    node_on(nvml_on, latency={"gi_create": 300})
    board, other = gpu(), gpu(1)
    creation = threading.Thread(target=lambda: pynvml.nvmlDeviceCreateGpuInstance(board, 9))
    creation.start()
    begin = time.monotonic()
    assert code(pynvml.nvmlDeviceSetPersistenceMode, other, 1) == SUCCESS
    assert time.monotonic() - begin < 0.2
    creation.join()


def test_a_switch_to_mig_mode_of_a_lost_gpu_is_refused(nvml_on: NvmlOn) -> None:
    node = node_on(nvml_on)
    board = gpu(2)
    incidents.lose_with_xid(node, node.gpu("2"), 79)
    assert code(pynvml.nvmlDeviceSetMigMode, board, 1) == LOST
