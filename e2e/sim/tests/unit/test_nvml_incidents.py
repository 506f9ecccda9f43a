# SPDX-License-Identifier: Apache-2.0
"""What happens on a node reaches those who wait for it, in every process (§8, §21.7)."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pynvml
import pytest
from nvdra_sim import incidents
from nvdra_sim.incidents import InstanceRef
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file.layout import MAX_EVENTS, NO_INSTANCE
from nvdra_sim.testing.nvml_fixtures import NvmlOn

XID, SBE, DBE = 0x8, 0x1, 0x2
TIMEOUT, LOST, INVALID, NOT_LOADED = 10, 15, 2, 9


def handle(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def event_set(*indices: int, types: int = XID) -> Any:
    events = pynvml.nvmlEventSetCreate()
    for index in indices:
        pynvml.nvmlDeviceRegisterEvents(handle(index), types, events)
    return events


def drained(events: Any, timeout_ms: int = 0) -> list[tuple[int, int]]:
    """Index and data of every event that is pending, and what the set answered at last."""
    found: list[tuple[int, int]] = []
    try:
        while True:
            event = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
            found.append((pynvml.nvmlDeviceGetIndex(event.device), event.eventData))
    except pynvml.NVMLError as error:
        return [*found, (-1, error.value)]


END = (-1, TIMEOUT)


def test_a_set_gets_what_it_registered_for_and_nothing_else(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    events = event_set(0, 2)
    for index, number in ((1, 48), (2, 31), (0, 79), (2, 13)):
        incidents.report_xid(node, node.gpu(str(index)), number)
    incidents.report_ecc_errors(node, node.gpu("0"), "dbe")
    assert drained(events) == [(2, 31), (0, 79), (2, 13), END]


def test_what_happened_before_is_not_told(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events = event_set(0)
    incidents.report_xid(node, node.gpu("1"), 48)
    pynvml.nvmlDeviceRegisterEvents(handle(1), XID, events)
    incidents.report_xid(node, node.gpu("1"), 94)
    assert drained(events) == [(1, 94), END]


def test_registering_again_adds_types(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events = event_set(0)
    pynvml.nvmlDeviceRegisterEvents(handle(0), DBE, events)
    pynvml.nvmlDeviceRegisterEvents(handle(0), 0, events)
    incidents.report_ecc_errors(node, node.gpu("0"), "sbe", 3)
    incidents.report_ecc_errors(node, node.gpu("0"), "dbe")
    incidents.report_xid(node, node.gpu("0"), 63)
    assert drained(events) == [(0, 0), (0, 63), END]


def test_an_event_of_the_whole_gpu_names_no_instance(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events = event_set(3)
    incidents.report_xid(node, node.gpu("3"), 4711)
    event = pynvml.nvmlEventSetWait_v2(events, 0)
    assert (event.eventType, event.eventData) == (XID, 4711)
    assert (event.gpuInstanceId, event.computeInstanceId) == (NO_INSTANCE, NO_INSTANCE)


def test_several_sets_get_every_event(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    one, other = event_set(0), event_set(0, 1)
    incidents.report_xid(node, node.gpu("0"), 45)
    assert (drained(one), drained(other)) == ([(0, 45), END], [(0, 45), END])


def test_of_two_threads_on_one_set_each_event_goes_to_one(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events = event_set(0)

    def collect() -> list[int]:
        return [data for _, data in drained(events, 1000)[:-1]]

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(collect) for _ in range(2)]
        for number in range(100):
            incidents.report_xid(node, node.gpu("0"), number)
        got = [future.result() for future in waiting]
    assert sorted(got[0] + got[1]) == list(range(100))
    assert got[0] == sorted(got[0])


WAITER = """
import ctypes, pynvml, sys
ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), 8, events)
print("waiting", flush=True)
try:
    while True:
        event = pynvml.nvmlEventSetWait_v2(events, {timeout_ms})
        print(event.eventData, event.gpuInstanceId, event.computeInstanceId, flush=True)
except pynvml.NVMLError as error:
    print("end", error.value)
"""


def waiter(timeout_ms: int, *command: str) -> subprocess.Popen[str]:
    """Another process that waits for Xids of GPU 0 and prints each at once."""
    script = WAITER.format(library=str(nvml_library.build()), timeout_ms=timeout_ms)
    process = subprocess.Popen(
        [*command, sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert said(process) == "waiting"
    return process


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_are_woken_at_once(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    with waiter(60_000) as one, waiter(60_000) as other:
        delays = []
        for number in range(1, 21):
            begin = time.monotonic()
            incidents.report_xid(node, node.gpu("0"), number)
            assert said(one).split()[0] == str(number)
            delays.append(time.monotonic() - begin)
            assert said(other).split()[0] == str(number)
        incidents.unload_driver(node)
        assert (said(one), said(other)) == (f"end {NOT_LOADED}",) * 2
    assert min(delays) < 0.005


def test_an_error_of_one_instance_is_for_the_privileged(nvml_on: NvmlOn) -> None:
    instance = {"profile": "3g.40gb", "start": 0, "compute": ["3c"]}
    mig = {"mode": True, "instances": [instance]}
    board = {"model": "h100", "bus_id": "0000:10:00.0", "mig": mig}
    node = nvml_on(None, gpus=[board], node={"privilege": "euid"})
    with waiter(60_000) as root, waiter(60_000, "unshare", "--map-user=65534") as nobody:
        incidents.report_xid(node, node.gpu("0"), 13, InstanceRef(1, 0))
        incidents.report_xid(node, node.gpu("0"), 79)
        assert said(root) == "13 1 0"
        assert said(root) == said(nobody) == f"79 {NO_INSTANCE} {NO_INSTANCE}"
        incidents.unload_driver(node)


def test_a_mig_device_cannot_be_registered(nvml_on: NvmlOn) -> None:
    instance = {"profile": "7g.80gb", "start": 0, "compute": ["7c"]}
    mig = {"mode": True, "instances": [instance]}
    nvml_on(None, gpus=[{"model": "h100", "bus_id": "0000:10:00.0", "mig": mig}])
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(0), 0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceRegisterEvents(device, XID, event_set(0))


@pytest.mark.parametrize("timeout_ms", [1, 30, 150])
def test_a_wait_is_as_long_as_asked(nvml_on: NvmlOn, timeout_ms: int) -> None:
    nvml_on("t4")
    events = event_set(0)
    late: list[float] = []
    # The machine may hold waits up; none ends early.
    while not late or min(late) >= 0.02:
        assert len(late) < 50
        begin = time.monotonic()
        assert drained(events, timeout_ms) == [END]
        late.append(time.monotonic() - begin - timeout_ms / 1000)
        assert late[-1] >= 0


def test_whoever_reads_too_late_loses_the_oldest_events(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events, gpu = event_set(0), node.gpu("0")
    for number in range(MAX_EVENTS + 10):
        incidents.report_xid(node, gpu, number)
    assert drained(events) == [(0, number) for number in range(10, MAX_EVENTS + 10)] + [END]
    assert node.events_dropped == 10
    assert len(node.events()) == MAX_EVENTS


def test_a_reader_beside_a_restless_writer_gets_whole_events_in_order(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    events, gpus = event_set(*range(8)), node.description().gpus
    done = threading.Event()

    def write() -> None:
        for number in range(1500):
            incidents.report_xid(node, gpus[number % 8], number)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    got = []
    while not done.is_set():
        got += drained(events)[:-1]
    writer.join()
    got += drained(events)[:-1]
    assert all(index == number % 8 for index, number in got)
    assert [number for _, number in got] == sorted({number for _, number in got})
    assert len(got) + node.events_dropped == 1500


# A lost GPU


def test_a_gpu_that_falls_off_the_bus_says_so_first(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    events = event_set(3)
    incidents.lose_with_xid(node, node.gpu("3"), 79)
    event = pynvml.nvmlEventSetWait_v2(events, 0)
    assert (event.eventType, event.eventData) == (XID, 79)
    assert [drained(events, 60_000) for _ in range(3)] == [[(-1, LOST)]] * 3
    node.restore(node.gpu("3"))
    assert drained(events) == [END]


def test_the_loss_may_be_told_once(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", gpu_lost={"wait": "error_once"})
    events = event_set(0, 1)
    node.lose(node.gpu("1"))
    assert [drained(events) for _ in range(3)] == [[(-1, LOST)], [END], [END]]
    node.restore(node.gpu("1"))
    assert drained(events) == [END]
    node.lose(node.gpu("1"))
    assert drained(events) == [(-1, LOST)]


def test_the_loss_may_be_told_by_its_xid_only(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", gpu_lost={"wait": "xid_only"})
    events = event_set(0)
    incidents.lose_with_xid(node, node.gpu("0"), 79)
    event = pynvml.nvmlEventSetWait_v2(events, 0)
    assert event.eventData == 79
    assert drained(events) == [END]


# Forks and threads


def test_a_forked_child_gets_events_of_its_own(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    script = f"""
    import ctypes, os, pynvml
    from pathlib import Path
    ctypes.CDLL({str(nvml_library.build())!r}, ctypes.RTLD_GLOBAL)
    from nvdra_sim import incidents
    from nvdra_sim.state_file import state
    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), 8, events)
    child = os.fork()
    node = state.load(Path(os.environ["NVDRA_SIM_STATE"]))
    if child == 0:
        os._exit(pynvml.nvmlEventSetWait_v2(events, 60000).eventData)
    incidents.report_xid(node, node.gpu("0"), 48)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(pynvml.nvmlEventSetWait_v2(events, 0).eventData)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "48\n48\n"), done.stderr
    assert [event.data for event in node.events()] == [48]
