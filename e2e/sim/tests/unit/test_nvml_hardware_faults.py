# SPDX-License-Identifier: Apache-2.0
"""Each row of the table of faults that is no plain rule or event.

Source: docs/reference/nvml-simulator.md §11.
"""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from uuid import UUID

import pynvml
import pytest
from nvdra_sim import incidents, installation
from nvdra_sim.configuration import node_config
from nvdra_sim.description import Fault
from nvdra_sim.incidents import InstanceRef
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import state
from nvdra_sim.testing.nvml_fixtures import NvmlOn

CORRECTED, UNCORRECTED, VOLATILE, AGGREGATE = 0, 1, 0, 1
CLUSTER = UUID("3f1c7f5e-4a43-4f0b-8a53-0e9b7a9d2c11")


def handle(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def code(call: Any, *arguments: Any) -> int:
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


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


# The bus


def test_an_unplugged_gpu_is_neither_counted_nor_found(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    gone, after = handle(1), node.gpu("2").uuid
    incidents.unplug(node, node.gpu("1"))
    assert pynvml.nvmlDeviceGetCount() == 3
    assert pynvml.nvmlDeviceGetUUID(handle(1)) == after
    assert code(pynvml.nvmlDeviceGetHandleByUUID, node.gpu("1").uuid) == 6
    assert code(pynvml.nvmlDeviceGetHandleByPciBusId, node.gpu("1").bus_id) == 6
    assert code(pynvml.nvmlDeviceGetName, gone) == 2
    incidents.plug(node, node.gpu("1"))
    assert pynvml.nvmlDeviceGetCount() == 4
    assert pynvml.nvmlDeviceGetName(gone) == "Tesla T4"
    with pytest.raises(state.StateError, match="is plugged in"):
        incidents.plug(node, node.gpu("1"))


def test_a_gpu_that_is_plugged_in_is_found_by_the_first_of_the_next_users_of_the_library(
    nvml_on: NvmlOn,
) -> None:
    node = nvml_on("t4", initialize=False)
    incidents.unplug(node, node.gpu("1"))
    pynvml.nvmlInit()
    incidents.plug(node, node.gpu("1"))
    assert pynvml.nvmlDeviceGetCount() == 3
    pynvml.nvmlInit()  # another user of the library, which is in use
    assert pynvml.nvmlDeviceGetCount() == 3
    assert code(pynvml.nvmlDeviceGetHandleByUUID, node.gpu("1").uuid) == 6
    pynvml.nvmlShutdown()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 4


# Memory errors and fabric


def test_memory_errors_are_counted_and_only_the_aggregate_outlives_a_reset(
    nvml_on: NvmlOn,
) -> None:
    node = nvml_on("dgx-h100")
    incidents.report_ecc_errors(node, node.gpu("2"), "sbe", 7)
    incidents.report_ecc_errors(node, node.gpu("2"), "dbe")

    def counters() -> list[int]:
        return [
            pynvml.nvmlDeviceGetTotalEccErrors(handle(2), kind, counter)
            for counter in (VOLATILE, AGGREGATE)
            for kind in (CORRECTED, UNCORRECTED)
        ]

    assert counters() == [7, 1, 7, 1]
    incidents.reset(node, node.gpu("2"))
    assert counters() == [0, 0, 7, 1]
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle(1), UNCORRECTED, AGGREGATE) == 0


def test_the_fabric_changes_under_running_processes(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72")

    def fabric(index: int) -> Any:
        info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        info.version = pynvml.nvmlGpuFabricInfo_v3
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle(index), pynvml.byref(info))
        return info

    before = fabric(1)
    incidents.set_fabric(node, [node.gpu("0")], fabric_state="in_progress", status=15, clique=9)
    incidents.set_fabric(node, [node.gpu("0")], uuid=CLUSTER, health=0x1AA, summary=2)
    now = fabric(0)
    assert (now.state, now.status, now.cliqueId) == (2, 15, 9)
    assert bytes(now.clusterUuid) == CLUSTER.bytes
    assert (now.healthMask, now.healthSummary) == (0x1AA, 2)
    assert bytes(fabric(1)) == bytes(before)


# Processes


def test_processes_are_listed_with_their_memory(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    free = pynvml.nvmlDeviceGetMemoryInfo(handle(0)).free
    incidents.add_process(node, node.gpu("0"), 4711, 1024)
    incidents.add_process(node, node.gpu("0"), 12, 100, "graphics")
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle(0))
    assert (process.pid, process.usedGpuMemory) == (4711, 1024 << 20)
    assert [one.pid for one in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle(0))] == [12]
    assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle(0)) == []
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle(1)) == []
    assert free - pynvml.nvmlDeviceGetMemoryInfo(handle(0)).free == 1124 << 20
    incidents.remove_process(node, node.gpu("0"), 4711)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle(0)) == []
    with pytest.raises(state.StateError, match="4711 does not use GPU 0"):
        incidents.remove_process(node, node.gpu("0"), 4711)


def test_a_mig_device_lists_its_own_processes(nvml_on: NvmlOn) -> None:
    cut = [
        {"profile": "3g.40gb", "start": 0, "compute": ["3c"]},
        {"profile": "1g.10gb", "start": 4, "compute": ["1c"]},
    ]
    mig = {"mode": True, "instances": cut}
    node = nvml_on(None, gpus=[{"model": "h100", "bus_id": "0000:10:00.0", "mig": mig}])
    incidents.add_process(node, node.gpu("0"), 77, 512, "compute", InstanceRef(11, 0))
    one, other = (pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(0), place) for place in (0, 1))
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(one) == []
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(other)
    assert (process.pid, process.gpuInstanceId, process.computeInstanceId) == (77, 11, 0)
    assert pynvml.nvmlDeviceGetMemoryInfo(other).used == 512 << 20
    assert pynvml.nvmlDeviceGetMemoryInfo(one).used == 0


def test_a_board_has_room_for_so_many_processes(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    for pid in range(1, 65):
        incidents.add_process(node, node.gpu("0"), pid)
    with pytest.raises(state.StateError, match="has room for 64"):
        incidents.add_process(node, node.gpu("0"), 65)
    assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle(0))) == 64


# The driver


def test_without_the_kernel_module_nobody_answers(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    gpu, events = handle(0), pynvml.nvmlEventSetCreate()
    incidents.unload_driver(node)
    assert code(pynvml.nvmlDeviceGetName, gpu) == 9
    assert code(pynvml.nvmlDeviceGetCount) == 9
    assert code(pynvml.nvmlSystemGetDriverVersion) == 9
    assert code(pynvml.nvmlEventSetWait_v2, events, 60_000) == 9
    assert code(pynvml.nvmlShutdown) == 0
    assert code(pynvml.nvmlInit) == 9
    incidents.load_driver(node)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetName(gpu) == "Tesla T4"


def test_a_driver_that_is_loaded_later_finds_its_gpus_as_after_a_boot(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", initialize=False, driver={"module_loaded": False})
    assert code(pynvml.nvmlInit) == 9
    node.lose(node.gpu("1"))
    incidents.unplug(node, node.gpu("2"))
    incidents.load_driver(node)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 3
    assert code(pynvml.nvmlDeviceGetName, handle(1)) == 15


# What rules can do besides failing and waiting


def test_a_rule_may_start_late(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceGetName", result=999, after_calls=2, times=1))
    assert [code(pynvml.nvmlDeviceGetName, handle(0)) for _ in range(4)] == [0, 0, 999, 0]


def test_a_rule_may_apply_by_chance_the_same_each_time(nvml_on: NvmlOn) -> None:
    runs = []
    for seed in (7, 7, 8):
        node = nvml_on("t4", node={"seed": seed})
        node.add_rule(fault("nvmlDeviceGetName", result=999, probability=0.25))
        runs.append([code(pynvml.nvmlDeviceGetName, handle(0)) for _ in range(400)])
    assert runs[0] == runs[1] != runs[2]
    assert 70 <= runs[0].count(999) <= 130


def test_a_reply_may_be_lost_although_the_work_is_done(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceSetPersistenceMode", result=10, do_work=True))
    assert code(pynvml.nvmlDeviceSetPersistenceMode, handle(0), 1) == 10
    assert pynvml.nvmlDeviceGetPersistenceMode(handle(0)) == 1
    assert node.counters()["nvmlDeviceSetPersistenceMode"].errors == 1


@pytest.mark.parametrize(("do_work", "done"), [(False, 0), (True, 1)])
def test_the_caller_may_be_killed_before_or_after_the_work(
    nvml_on: NvmlOn, do_work: bool, done: int
) -> None:
    node = nvml_on("t4")
    node.add_rule(fault("nvmlDeviceSetPersistenceMode", abort=True, do_work=do_work))
    script = f"""
    import ctypes, pynvml
    ctypes.CDLL({str(nvml_library.build())!r}, ctypes.RTLD_GLOBAL)
    pynvml.nvmlInit()
    pynvml.nvmlDeviceSetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1)
    """
    caller = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert caller.returncode == -signal.SIGKILL
    assert pynvml.nvmlDeviceGetPersistenceMode(handle(0)) == done


# The clock of events


def test_the_clock_of_events_stops_and_moves(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")

    def times(count: int) -> list[int]:
        for _ in range(count):
            incidents.report_xid(node, node.gpu("0"), 1)
        return [event.time_ns for event in node.events()[-count:]]

    first, second = times(2)
    assert first < second
    incidents.freeze_clock(node)
    frozen, same = times(2)
    assert frozen == same >= second
    incidents.step_clock(node, 5000)
    (stepped,) = times(1)
    assert stepped == frozen + 5_000_000_000
    incidents.run_clock(node)
    (running,) = times(1)
    assert stepped <= running < stepped + 60_000_000_000
    incidents.step_clock(node, -3_600_000)
    (back,) = times(1)
    assert back < running


# Resets and boots (§10.6)


CUT = {"mode": True, "instances": [{"profile": "7g.80gb", "start": 0, "compute": ["7c"]}]}
A100_CUT = {"mode": True, "instances": [{"profile": "7g.40gb", "start": 0, "compute": ["7c"]}]}


def mixed(nvml_on: NvmlOn) -> state.State:
    """An Ampere board and a Hopper one, both cut, with everything changed that can be."""
    boards = [
        {"model": "a100-40", "bus_id": "0000:10:00.0", "mig": A100_CUT},
        {"model": "h100", "bus_id": "0000:20:00.0", "mig": CUT, "minor": 7},
        {"model": "t4", "bus_id": "0000:30:00.0"},
    ]
    node = nvml_on(None, gpus=boards)
    for gpu in node.description().gpus:
        pynvml.nvmlDeviceSetPersistenceMode(handle(gpu.index), 1)
        incidents.report_xid(node, gpu, 31)
    pynvml.nvmlDeviceSetComputeMode(handle(2), 3)
    return node


def modes() -> list[tuple[int, int]]:
    """MIG mode and number of MIG devices of each board."""
    found = []
    for index in range(2):
        current, pending = pynvml.nvmlDeviceGetMigMode(handle(index))
        assert current == pending
        by_index = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        devices = sum(code(by_index, handle(index), place) == 0 for place in range(7))
        found.append((current, devices))
    return found


def restart(kind: str, node: state.State) -> None:
    if kind == "reboot":
        incidents.reboot(node)
    elif kind == "the machine's boot":
        with node.transaction() as now:
            now.boot_id = b"00000000-0000-0000-0000-000000000000"
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
    else:
        incidents.unload_driver(node)
        incidents.load_driver(node)


@pytest.mark.parametrize("kind", ["reboot", "the machine's boot", "driver"])
def test_instances_are_gone_and_only_ampere_keeps_its_mode_after_a(
    nvml_on: NvmlOn, kind: str
) -> None:
    node = mixed(nvml_on)
    assert modes() == [(1, 1), (1, 1)]
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(0), 0)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle(0), 0)
    restart(kind, node)
    assert modes() == [(1, 0), (0, 0)]
    assert code(pynvml.nvmlDeviceGetUUID, device) == 2
    assert code(pynvml.nvmlGpuInstanceGetInfo, instance) == 2
    assert [pynvml.nvmlDeviceGetPersistenceMode(handle(index)) for index in range(3)] == [0] * 3
    assert pynvml.nvmlDeviceGetComputeMode(handle(2)) == 0
    assert pynvml.nvmlDeviceGetMinorNumber(handle(1)) == 7
    drivers = 2 * 3  # each GPU leaves its driver and gets it again
    assert len(node.events()) == (3 + drivers if kind == "driver" else 0)


def test_a_reset_concerns_one_board_and_settles_its_mig_mode(nvml_on: NvmlOn) -> None:
    node = mixed(nvml_on)
    with node.transaction() as now:
        now.gpus[0].mig_pending = 0
    incidents.reset(node, node.gpu("0"))
    incidents.reset(node, node.gpu("1"))
    assert modes() == [(0, 0), (1, 0)]
    assert [pynvml.nvmlDeviceGetPersistenceMode(handle(index)) for index in range(3)] == [0, 0, 1]


def test_what_is_lost_or_in_use_cannot_be_reset(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.lose(node.gpu("0"))
    incidents.add_process(node, node.gpu("1"), 4711)
    with pytest.raises(state.StateError, match="is lost: only a reboot"):
        incidents.reset(node, node.gpu("0"))
    with pytest.raises(state.StateError, match="in use"):
        incidents.reset(node, node.gpu("1"))
    incidents.reboot(node)
    assert code(pynvml.nvmlDeviceGetName, handle(0)) == 0
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle(1)) == []


def test_a_set_hears_nothing_of_the_time_before_a_boot(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle(0), 8, events)
    incidents.report_xid(node, node.gpu("0"), 48)
    incidents.reboot(node)
    incidents.report_xid(node, node.gpu("0"), 13)
    assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 13
    assert node.events_dropped == 0


# Installed nodes


def test_a_vanished_device_node_comes_back_with_the_same_install(tmp_path: Path) -> None:
    node = node_config.from_profile("t4", "node-0", {"render": {"nodes": "real"}})
    roots = installation.Roots.below(tmp_path)

    def again() -> None:
        installation.install(
            node,
            driver_root=roots.driver,
            proc_root=roots.proc,
            sys_root=roots.sys,
            dev_root=roots.dev,
        )

    again()
    file = state.load(roots.driver / "lib/firmware/nvidia/580.95.05/gsp_nvdra_sim.bin")
    file.lose(file.gpu("3"))
    (roots.dev / "nvidia2").unlink()
    again()
    found = (roots.dev / "nvidia2").stat()
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (195, 2)
    assert file.snapshot().gpus[3].lost == 1
    installation.uninstall(driver_root=roots.driver)
