"""Event sets by themselves: made, filled, waited for, freed.

What reaches them is in test_nvml_incidents.py.
"""

import ctypes
import threading
import time

import pynvml
import pytest
from nvdra_sim.testing.nvml_fixtures import NvmlOn

HEALTH = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError


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
