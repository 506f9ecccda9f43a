# SPDX-License-Identifier: Apache-2.0
"""Drain state, removal, and events of drivers: what NVML says while a GPU changes hands."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from nvdra_sim import incidents
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import pci_records
from nvdra_sim.state_file.state import State
from nvdra_sim.testing.nvml_fixtures import NvmlOn

ENABLED, DISABLED = 1, 0
KEEP, REMOVE = 0, 1
IN_USE, NOT_FOUND, LOST, TIMEOUT, UNKNOWN = 19, 6, 15, 10, 999
IDLE_PROGRAM = """
import pynvml, sys
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(int(index)) for index in sys.argv[1:]]
print(pynvml.nvmlDeviceGetCount(), flush=True)
sys.stdin.read()
"""


def pci(index: int) -> pynvml.nvmlPciInfo_t:
    return pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByIndex(index))


def code(call: Callable[..., object], *arguments: object) -> int:
    """The code of an NVML call, 0 for success."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def drain_state(info: pynvml.nvmlPciInfo_t) -> int:
    return int(pynvml.nvmlDeviceQueryDrainState(info))


def drain(info: pynvml.nvmlPciInfo_t, state: int = ENABLED) -> int:
    return code(pynvml.nvmlDeviceModifyDrainState, info, state)


def remove(info: pynvml.nvmlPciInfo_t, what: int = REMOVE) -> int:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    return int(library.nvmlDeviceRemoveGpu_v2(ctypes.byref(info), what, 0))


def client(node: State, *indices: int) -> "subprocess.Popen[str]":
    """Another process with a session that uses these GPUs, and says how many it sees."""
    words = [sys.executable, "-c", IDLE_PROGRAM, *map(str, indices)]
    environment = {
        "LD_LIBRARY_PATH": str(nvml_library.build().parent),
        "NVDRA_SIM_STATE": str(node.path),
        "PATH": os.defpath,
    }
    return subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_drained_gpu_is_not_listed_by_sessions_that_begin(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    info = pci(1)
    assert drain_state(info) == DISABLED
    assert drain(info) == 0
    assert drain_state(info) == ENABLED
    assert pynvml.nvmlDeviceGetCount() == 4  # this one has it already
    with client(node) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "3\n"
        other.communicate()
    assert drain(info, DISABLED) == 0
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 4


def test_a_drained_gpu_keeps_its_clients_and_takes_no_new_ones(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    used = pynvml.nvmlDeviceGetHandleByIndex(1)
    info = pci(1)
    assert drain(info) == 0
    assert pynvml.nvmlDeviceGetMinorNumber(used) == 1
    other = pynvml.nvmlPciInfo_t()
    other.domain, other.bus, other.device = 0, 0xAF, 0  # 0000:af:00.0, not used yet
    assert drain(other) == 0
    assert code(pynvml.nvmlDeviceGetHandleByIndex, 2) == UNKNOWN


def test_the_second_who_drains_learns_of_the_first(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    info = pci(0)
    assert [drain(info), drain(info)] == [0, IN_USE]
    assert [drain(info, DISABLED), drain(info, DISABLED)] == [0, 0]


def test_persistence_mode_keeps_a_gpu_from_being_drained(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetPersistenceMode(gpu, 1)
    assert drain(pci(0)) == IN_USE
    pynvml.nvmlDeviceSetPersistenceMode(gpu, 0)
    assert drain(pci(0)) == 0


def test_the_drain_state_ends_with_the_binding(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    info = pci(0)
    assert drain(info) == 0
    incidents.unbind(node, node.gpu("0"))
    assert code(drain_state, info) == NOT_FOUND
    incidents.bind(node, node.gpu("0"))
    assert drain_state(info) == DISABLED


def test_the_drain_state_outlives_the_binding_where_a_node_has_it_so(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", node={"unbind_ends_drain": False})
    info = pci(0)
    assert drain(info) == 0
    incidents.unbind(node, node.gpu("0"))
    assert code(drain_state, info) == NOT_FOUND
    incidents.bind(node, node.gpu("0"))
    assert drain_state(info) == ENABLED
    incidents.reboot(node)
    assert node.snapshot().gpus[0].drained == 0


def test_a_gpu_is_removed_once_no_other_process_has_it(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    info = pci(1)
    with client(node, 1) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "4\n"
        assert drain(info) == 0
        assert remove(info) == IN_USE
        assert drain_state(info) == ENABLED
        other.communicate()
    assert remove(info) == 0
    assert pynvml.nvmlDeviceGetCount() == 3
    bus = pci_records.read(node.snapshot(), node.description())
    assert bus.state("0000:86:00.0") is None
    assert code(drain_state, info) == NOT_FOUND


def test_a_detached_gpu_that_is_kept_stays_on_the_bus(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    info = pci(1)
    assert drain(info) == 0
    assert remove(info, KEEP) == 0
    bus = pci_records.read(node.snapshot(), node.description())
    state = bus.state("0000:86:00.0")
    assert state is not None
    assert state.driver is None


def test_a_gpu_that_its_driver_leaves_is_lost_for_old_sessions_and_not_there_for_new_ones(
    nvml_on: NvmlOn,
) -> None:
    node = nvml_on("t4")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with node.transaction() as now:
        now.gpus[0].removing = 1
    assert pynvml.nvmlDeviceGetCount() == 4
    assert code(pynvml.nvmlDeviceGetUUID, gpu) == LOST
    with client(node) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "3\n"
        other.communicate()


def test_a_broken_gpu_is_listed_and_does_not_start(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", initialize=False)
    incidents.break_at_bind(node, node.gpu("2"))
    pynvml.nvmlInit()
    pynvml.nvmlDeviceGetHandleByIndex(2)
    pynvml.nvmlShutdown()
    incidents.unbind(node, node.gpu("2"))
    incidents.bind(node, node.gpu("2"))
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 4
    assert code(pynvml.nvmlDeviceGetHandleByIndex, 2) == UNKNOWN
    incidents.reboot(node)
    pynvml.nvmlDeviceGetHandleByIndex(2)


# Events of drivers


class Events:
    """A set of system events."""

    def __init__(self, types: int) -> None:
        version = pynvml.nvmlSystemEventSetCreateRequest_v1
        self.set = pynvml.nvmlSystemEventSetCreate(version)
        version = pynvml.nvmlSystemRegisterEventRequest_v1
        pynvml.nvmlSystemRegisterEvents(version, types, self.set)

    def wait(self, room: int = 8) -> list[tuple[int, int]]:
        data = (pynvml.c_nvmlSystemEventData_v1_t * room)()
        request = pynvml.c_nvmlSystemEventSetWaitRequest_v1_t()
        request.timeoutms, request.set, request.dataSize = 50, self.set, room
        request.data = ctypes.cast(data, ctypes.POINTER(pynvml.c_nvmlSystemEventData_v1_t))
        found = ctypes.CDLL("libnvidia-ml.so.1").nvmlSystemEventSetWait(ctypes.byref(request))
        if found:
            raise pynvml.NVMLError(found)
        return [(event.eventType, event.gpuId) for event in data[: request.numEvent]]


UNBIND, BIND = 1, 2
GPU_ID = 0x3B << 8  # bus 3b, device 0 of domain 0


def test_a_set_hears_of_drivers_that_leave_and_take_gpus(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    incidents.unbind(node, node.gpu("3"))  # before anyone has asked
    events = Events(UNBIND | BIND)
    assert code(events.wait) == TIMEOUT
    incidents.unbind(node, node.gpu("0"))
    incidents.bind(node, node.gpu("0"))
    assert events.wait(room=1) == [(UNBIND, GPU_ID)]
    assert events.wait() == [(BIND, GPU_ID)]
    assert code(events.wait) == TIMEOUT


def test_a_set_hears_of_what_it_has_asked_for_only(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events = Events(BIND)
    incidents.unbind(node, node.gpu("0"))
    assert code(events.wait) == TIMEOUT
    incidents.bind(node, node.gpu("0"))
    assert events.wait() == [(BIND, GPU_ID)]


def test_events_of_gpus_and_of_drivers_do_not_mix(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events = Events(UNBIND | BIND)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
    xids = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, xids)
    incidents.report_xid(node, node.gpu("1"), 48)
    incidents.unbind(node, node.gpu("0"))
    assert events.wait() == [(UNBIND, GPU_ID)]
    assert pynvml.nvmlEventSetWait_v2(xids, 50).eventData == 48


@pytest.mark.parametrize("types", [0, 4])
def test_a_set_can_ask_for_the_two_types_only(nvml_on: NvmlOn, types: int) -> None:
    nvml_on("t4")
    assert code(Events, types) == 2


def test_a_freed_set_is_none_any_more(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    events = Events(BIND)
    version = pynvml.nvmlSystemEventSetFreeRequest_v1
    pynvml.nvmlSystemEventSetFree(version, events.set)
    assert code(events.wait) == 2
    assert code(pynvml.nvmlSystemEventSetFree, version, events.set) == 2


def test_a_client_has_the_node_of_its_gpu_open(tmp_path: Path, nvml_on: NvmlOn) -> None:
    """By its number, so that programs that know nothing of this library see who uses the GPU."""
    node = nvml_on("t4", initialize=False, node={"majors": {"nvidia": 3998}})
    dev = tmp_path / "dev"
    dev.mkdir()
    node.move_roots(dev_root=dev, sys_root=tmp_path)
    os.mknod(dev / "nvidia0", 0o20666, os.makedev(3998, 0))
    os.mknod(dev / "nvidia1", 0o20666, os.makedev(3999, 1))  # not that of the GPU
    pynvml.nvmlInit()
    assert opened() == []
    pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceGetHandleByIndex(1)
    assert opened() == [(3998, 0)]
    pynvml.nvmlShutdown()
    assert opened() == []


def opened() -> list[tuple[int, int]]:
    """The numbers of the nodes of GPUs that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            number = link.stat().st_rdev
        except FileNotFoundError:  # that of the listing itself
            continue
        if os.major(number) in (3998, 3999):
            found.append((os.major(number), os.minor(number)))
    return found
