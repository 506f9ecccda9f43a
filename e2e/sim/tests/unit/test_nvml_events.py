# SPDX-License-Identifier: Apache-2.0
"""Event sets by themselves: made, filled, waited for, freed.

What reaches them is in test_nvml_incidents.py.
"""

import ctypes
import subprocess
import sys
import threading
import time

import pynvml
import pytest
from nvdra_sim import incidents
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import clients
from nvdra_sim.testing.nvml_fixtures import NvmlOn

HEALTH = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

CARELESS = """
import ctypes, sys, threading, time
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import pynvml
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), 8, events)
if sys.argv[2] == "frees it too early":
    threading.Thread(target=lambda: pynvml.nvmlEventSetWait_v2(events, 60_000), daemon=True).start()
    time.sleep(0.2)
    pynvml.nvmlEventSetFree(events)
pynvml.nvmlShutdown()
print("shut down", flush=True)
sys.stdin.read()
"""


def test_a_wait_ends_with_its_time(nvml_on: NvmlOn) -> None:
    nvml_on("dgx-h100")
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), HEALTH, events)
    durations = []
    for _ in range(5):
        begin = time.monotonic()
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 15)
        durations.append(time.monotonic() - begin)
    assert 0.015 <= min(durations) < 0.035
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)
    pynvml.nvmlEventSetFree(events)


def test_a_wait_ends_when_a_gpu_of_the_set_is_lost(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(3), HEALTH, events)
    codes: list[int] = []

    def wait() -> None:
        try:
            pynvml.nvmlEventSetWait_v2(events, 30_000)
        except pynvml.NVMLError as error:
            codes.append(error.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    node.lose(node.gpu("4"))
    assert codes == []
    node.lose(node.gpu("3"))
    waiter.join(timeout=10)
    assert codes == [pynvml.NVML_ERROR_GPU_IS_LOST]


def test_a_wait_ends_when_its_set_is_freed(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlEventSetFree(events)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetWait_v2(events, 1000)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetFree(events)


def test_an_unsupported_event_registers_nothing(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events, handle = pynvml.nvmlEventSetCreate(), pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handle) == node.gpu("0").supported_events
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(handle, HEALTH | 1 << 40, events)
    node.lose(node.gpu("0"))
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)


def test_bits_of_no_event_type_are_taken(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    events, handle = pynvml.nvmlEventSetCreate(), pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(handle, 1 << 5 | 1 << 6, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)


@pytest.mark.parametrize(
    ("profile", "version", "types"),
    [
        ("hgx-h200", "580.159.04", pynvml.nvmlEventTypeAll),
        ("hgx-h200", "570.124.06", HEALTH | 0x105),
        ("dgx-a100", "580.159.04", HEALTH | 0x105),
    ],
)
def test_new_gpus_support_all_event_types_with_a_new_driver(
    nvml_on: NvmlOn, profile: str, version: str, types: int
) -> None:
    nvml_on(profile, driver={"version": version})
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handle) == types


def test_sets_end_with_the_session(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    events = [pynvml.nvmlEventSetCreate() for _ in range(64)]
    with pytest.raises(pynvml.NVMLError_Memory):
        pynvml.nvmlEventSetCreate()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetFree(events[0])
    assert pynvml.nvmlEventSetCreate()


def test_the_old_wait_ends_with_its_time_too(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    events, data = pynvml.nvmlEventSetCreate(), ctypes.create_string_buffer(24)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlEventSetWait(events, data, 1) == pynvml.NVML_ERROR_TIMEOUT


@pytest.mark.parametrize("mistake", ["never frees it", "frees it too early"])
def test_the_driver_stays_in_use_by_a_process_that(nvml_on: NvmlOn, mistake: str) -> None:
    node = nvml_on("t4")
    pynvml.nvmlShutdown()
    assert not clients.has_session(node)
    command = (sys.executable, "-c", CARELESS, str(nvml_library.build()), mistake)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"shut down\n"
        assert clients.has_session(node)
        assert clients.has_clients(node, 0)
    assert not clients.has_clients(node, 0), "the kernel closes what a process leaves open"


def test_a_set_that_is_freed_in_time_keeps_nothing_open(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    events, handle = pynvml.nvmlEventSetCreate(), pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(handle, HEALTH, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    pynvml.nvmlEventSetFree(events)
    pynvml.nvmlShutdown()
    assert not clients.has_clients(node, 0)


def field_value(index: int, number: int) -> int:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    (field,) = pynvml.nvmlDeviceGetFieldValues(gpu, [number])
    assert field.nvmlReturn == pynvml.NVML_SUCCESS, field.nvmlReturn
    is_long = field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    return int(field.value.ullVal if is_long else field.value.uiVal)


def recovery_action(index: int) -> int:
    return field_value(index, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)


def test_an_xid_changes_the_recovery_action_before_it_is_told_and_a_reset_changes_it_back(
    nvml_on: NvmlOn,
) -> None:
    node = nvml_on("t4")
    events, handle = pynvml.nvmlEventSetCreate(), pynvml.nvmlDeviceGetHandleByIndex(1)
    pynvml.nvmlDeviceRegisterEvents(handle, HEALTH, events)
    assert recovery_action(1) == pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    incidents.report_xid(node, node.gpu("1"), 48, recovery="gpu_reset")
    assert [pynvml.nvmlEventSetWait_v2(events, 0).eventData for _ in range(2)] == [48, 154]
    assert recovery_action(1) == pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET
    assert recovery_action(0) == pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    incidents.reset(node, node.gpu("1"))
    assert recovery_action(1) == pynvml.NVML_GPU_RECOVERY_ACTION_NONE


@pytest.mark.parametrize(("number", "name"), [*enumerate(incidents.RECOVERY_ACTIONS)])
def test_each_recovery_action_has_nvmls_number(nvml_on: NvmlOn, number: int, name: str) -> None:
    node = nvml_on("t4")
    incidents.set_recovery_action(node, node.gpu("1"), name)
    assert recovery_action(1) == number
    assert getattr(pynvml, f"NVML_GPU_RECOVERY_ACTION_{name.upper()}") == number


def test_an_older_driver_has_no_recovery_action(nvml_on: NvmlOn) -> None:
    nvml_on("t4", driver={"api_level": 560})
    with pytest.raises(AssertionError, match=str(pynvml.NVML_ERROR_NOT_SUPPORTED)):
        recovery_action(0)


ECC_FIELDS = (
    pynvml.NVML_FI_DEV_ECC_CURRENT,
    pynvml.NVML_FI_DEV_ECC_PENDING,
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
)


def remapping(index: int) -> tuple[int, int]:
    fields = (pynvml.NVML_FI_DEV_REMAPPED_PENDING, pynvml.NVML_FI_DEV_REMAPPED_FAILURE)
    pending, failure = (field_value(index, field) for field in fields)
    return pending, failure


def test_a_reset_ends_a_remapping_that_is_pending_and_no_failed_one(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    assert remapping(0) == (0, 0)
    incidents.set_row_remapping(node, node.gpu("0"), "pending")
    incidents.set_row_remapping(node, node.gpu("1"), "failed")
    assert (remapping(0), remapping(1), remapping(2)) == ((1, 0), (0, 1), (0, 0))
    by_call = pynvml.nvmlDeviceGetRemappedRows
    rows = [tuple(by_call(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in range(3)]
    assert rows == [(0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 0)]
    for gpu in ("0", "1"):
        incidents.reset(node, node.gpu(gpu))
    assert (remapping(0), remapping(1)) == ((0, 0), (0, 1))


def test_uncorrected_errors_are_counted_until_a_reset(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100")
    incidents.report_ecc_errors(node, node.gpu("1"), "sbe", 5)
    incidents.report_ecc_errors(node, node.gpu("1"), "dbe", 2)
    assert [field_value(1, field) for field in ECC_FIELDS] == [1, 1, 5, 2, 5, 2]
    incidents.reset(node, node.gpu("1"))
    assert [field_value(1, field) for field in ECC_FIELDS] == [1, 1, 0, 0, 5, 2]


@pytest.mark.parametrize(
    ("profile", "needs_no_reset"), [("dgx-h100", 1), ("b200", 1), ("dgx-a100", 0)]
)
def test_a_gpu_says_whether_its_mig_mode_needs_a_reset(
    nvml_on: NvmlOn, profile: str, needs_no_reset: int
) -> None:
    nvml_on(profile)
    assert field_value(0, pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED) == needs_no_reset
    assert field_value(0, pynvml.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE) == 1


def test_gpus_before_ampere_do_not_remap_rows(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    with pytest.raises(AssertionError, match=str(pynvml.NVML_ERROR_NOT_SUPPORTED)):
        remapping(0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRemappedRows(pynvml.nvmlDeviceGetHandleByIndex(0))
