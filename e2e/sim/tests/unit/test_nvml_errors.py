# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, and in which order the library finds it.

Source: docs/reference/nvml-simulator.md §4.
"""

import ctypes
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvdra_sim.native import nvml_functions
from nvdra_sim.testing.nvml_fixtures import NvmlOn

UNINITIALIZED, INVALID, NOT_SUPPORTED = 1, 2, 3
NO_PERMISSION, TOO_SMALL, NOT_LOADED, FUNCTION_NOT_FOUND, LOST = 4, 7, 9, 13, 15
NOT_GATED = {"nvmlErrorString", "nvmlInit", "nvmlInit_v1", "nvmlInit_v2", "nvmlInitWithFlags"}


@pytest.fixture
def c(nvml_on: NvmlOn) -> ctypes.CDLL:
    nvml_on("dgx-h100")
    return ctypes.CDLL("libnvidia-ml.so.1")


@pytest.fixture
def handle(c: ctypes.CDLL) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(1)


def test_every_function_but_init_wants_init_first(c: ctypes.CDLL) -> None:
    pynvml.nvmlShutdown()
    gated = [one.name for one in nvml_functions.functions() if one.name not in NOT_GATED]
    answers = {name: c[name](None, None, None, None) for name in gated}
    assert {name for name, code in answers.items() if code != UNINITIALIZED} == set()


def test_a_function_of_the_third_tier_is_not_supported(c: ctypes.CDLL) -> None:
    third = [one.name for one in nvml_functions.functions() if one.tier == "C"]
    assert len(third) > 280
    assert {c[name](None, None, None, None) for name in third} == {NOT_SUPPORTED}


ON_A_GPU = {
    "nvmlDeviceGetName": 2,
    "nvmlDeviceGetUUID": 2,
    "nvmlDeviceGetMemoryInfo": 1,
    "nvmlDeviceGetMigMode": 2,
    "nvmlDeviceGetPciInfo_v3": 1,
    "nvmlDeviceGetMinorNumber": 1,
    "nvmlDeviceGetCudaComputeCapability": 2,
    "nvmlDeviceGetComputeMode": 1,
    "nvmlDeviceGetPowerUsage": 1,
    "nvmlDeviceGetSupportedEventTypes": 1,
}


@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_missing_pointer_is_found_before_a_wrong_handle(c: ctypes.CDLL, name: str) -> None:
    assert c[name](None, None, None) == INVALID


@pytest.mark.parametrize("name", ON_A_GPU)
@pytest.mark.parametrize("address", [0, 8, 0xDEADBEEF])
def test_a_foreign_handle_is_refused_without_looking_behind_it(
    c: ctypes.CDLL, name: str, address: int
) -> None:
    room = ctypes.create_string_buffer(128)
    assert c[name](ctypes.c_void_p(address), room, room) == INVALID


def test_a_handle_beyond_the_gpus_of_this_node_is_refused(nvml_on: NvmlOn) -> None:
    nvml_on("dgx-h100")
    last = pynvml.nvmlDeviceGetHandleByIndex(7)
    nvml_on("t4")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(last)


@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_lost_gpu_answers_nothing_else(nvml_on: NvmlOn, name: str) -> None:
    node = nvml_on("dgx-h100")
    lost, well = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (1, 2))
    node.lose(node.gpu("1"))
    library, room = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(128)
    arguments: list[Any] = [ctypes.byref(room), ctypes.byref(room, 64)]
    if name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
        arguments = [room, 128]
    assert library[name](lost, *arguments) == LOST
    assert library[name](well, *arguments) == 0
    node.restore(node.gpu("1"))
    assert library[name](lost, *arguments) == 0


def test_a_lost_gpu_is_still_counted_and_found(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4")
    node.lose(node.gpu("2"))
    assert pynvml.nvmlDeviceGetCount() == 4
    for handle in (
        pynvml.nvmlDeviceGetHandleByIndex(2),
        pynvml.nvmlDeviceGetHandleByUUID(node.gpu("2").uuid),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetUUID(handle)


TEXTS = [
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetBoardPartNumber",
]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_goes_with_its_end_into_the_room_or_not_at_all(
    c: ctypes.CDLL, handle: Any, name: str
) -> None:
    room = ctypes.create_string_buffer(128)
    assert c[name](handle, room, 128) == 0
    exact = len(room.value) + 1
    room.raw = b"\xa5" * 128
    assert c[name](handle, room, exact - 1) == TOO_SMALL
    assert room.raw == b"\xa5" * 128
    assert c[name](handle, room, exact) == 0
    assert room.raw[exact:] == b"\xa5" * (128 - exact)


def test_words_for_codes_are_pynvmls_and_need_no_init(c: ctypes.CDLL) -> None:
    pynvml.nvmlShutdown()
    c.nvmlErrorString.restype = ctypes.c_char_p
    known = pynvml.NVMLError._errcode_to_string
    assert {code: c.nvmlErrorString(code).decode() for code in known} == dict(known)
    assert {c.nvmlErrorString(code) for code in (31, -1, 998, 1 << 30)} == {b"Unknown Error"}
    assert all(c.nvmlErrorString(code) for code in range(31))


# Init and shutdown


def test_shutdown_undoes_one_init(c: ctypes.CDLL) -> None:
    pynvml.nvmlInit()
    assert c.nvmlInit_v2() == 0
    assert [c.nvmlShutdown() for _ in range(4)] == [0, 0, 0, UNINITIALIZED]


@pytest.mark.parametrize(("flags", "code"), [(0, 0), (1, 0), (2, 0), (4, 0), (7, 0), (8, INVALID)])
def test_init_knows_three_flags(c: ctypes.CDLL, flags: int, code: int) -> None:
    assert c.nvmlInitWithFlags(flags) == code


def test_init_without_a_state_file_finds_no_driver(
    nvml_on: NvmlOn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml_on("t4", initialize=False)
    monkeypatch.setenv("NVDRA_SIM_STATE", str(tmp_path / "absent"))
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


@pytest.mark.parametrize("content", [b"", b"\0" * 4 * 1024 * 1024, b"NVDRASIM" * 512 * 1024])
def test_init_refuses_a_file_of_another_layout(
    nvml_on: NvmlOn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    nvml_on("t4", initialize=False)
    other = tmp_path / "other"
    other.write_bytes(content)
    monkeypatch.setenv("NVDRA_SIM_STATE", str(other))
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
        pynvml.nvmlInit()


def test_init_without_the_kernel_module_finds_no_driver(nvml_on: NvmlOn) -> None:
    nvml_on("t4", initialize=False, driver={"module_loaded": False})
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInitWithFlags(1)


@pytest.mark.parametrize(
    ("answer", "code"), [("success", 0), ("driver_not_loaded", 9), ("gpu_not_found", 28)]
)
def test_init_without_gpus_answers_as_configured_unless_told_not_to_mind(
    nvml_on: NvmlOn, answer: str, code: int
) -> None:
    nvml_on("none", initialize=False, node={"init_without_gpus": answer})
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == code
    assert library.nvmlInitWithFlags(1) == 0


def test_a_function_younger_than_the_driver_is_not_found(nvml_on: NvmlOn) -> None:
    nvml_on("dgx-h100", driver={"api_level": 535})
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    library, room = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(256)
    assert library.nvmlDeviceGetAddressingMode(handle, room) == FUNCTION_NOT_FOUND
    assert library.nvmlDeviceGetGpuFabricInfoV(handle, room) == FUNCTION_NOT_FOUND
    assert library.nvmlDeviceGetGpuFabricInfo(handle, room) == 0


# Rights


def test_a_mode_is_set_for_all_who_ask(c: ctypes.CDLL, handle: Any) -> None:
    pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
    pynvml.nvmlDeviceSetComputeMode(handle, 3)
    assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 1
    assert pynvml.nvmlDeviceGetComputeMode(handle) == 3
    other = pynvml.nvmlDeviceGetHandleByIndex(2)
    assert pynvml.nvmlDeviceGetPersistenceMode(other) == 0
    assert pynvml.nvmlDeviceGetComputeMode(other) == 0


def test_a_mode_that_does_not_exist_is_invalid_and_one_that_is_gone_not_supported(
    c: ctypes.CDLL, handle: Any
) -> None:
    assert c.nvmlDeviceSetPersistenceMode(handle, 2) == INVALID
    assert c.nvmlDeviceSetComputeMode(handle, 4) == INVALID
    assert c.nvmlDeviceSetComputeMode(handle, 1) == NOT_SUPPORTED


def test_board_memory_may_be_unknown_to_nvml(nvml_on: NvmlOn) -> None:
    overrides = {"gpus": [{"index": 0, "memory": {"nvml": "unsupported"}}]}
    nvml_on("t4", overrides=overrides)
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryInfo(handles[0])
    assert pynvml.nvmlDeviceGetMemoryInfo(handles[1]).total == 15360 << 20


def test_the_fabric_may_be_unknown_to_nvml(nvml_on: NvmlOn) -> None:
    nvml_on("dgx-h100", fabric={"call": "not_supported"})
    info = pynvml.c_nvmlGpuFabricInfo_t()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuFabricInfo(pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.byref(info))


def test_a_gpu_of_another_driver_is_not_there(nvml_on: NvmlOn) -> None:
    node = nvml_on("t4", overrides={"gpus": [{"index": 1, "bound_driver": "vfio-pci"}]})
    uuids = [gpu.uuid for gpu in node.description().gpus]
    seen = [
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(pynvml.nvmlDeviceGetCount())
    ]
    assert seen == [uuids[0], *uuids[2:]]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(uuids[1])
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuids[3])) == 2
