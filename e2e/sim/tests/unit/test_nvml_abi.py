# SPDX-License-Identifier: Apache-2.0
"""Structures have the sizes of the real interface, and other versions are refused.

The library asserts its own layouts when it is compiled; here the other side, pynvml, is held
against the same numbers (docs/reference/nvml-simulator.md §5).
"""

import ctypes
from collections.abc import Callable

import pynvml
import pytest
from nvdra_sim.testing.nvml_fixtures import NvmlOn

SIZES = {
    pynvml.nvmlPciInfo_t: 68,
    pynvml.nvmlPciInfoExt_v1_t: 64,
    pynvml.c_nvmlMemory_t: 24,
    pynvml.c_nvmlMemory_v2_t: 40,
    pynvml.c_nvmlBAR1Memory_t: 24,
    pynvml.c_nvmlDeviceAttributes: 40,
    pynvml.c_nvmlGpuInstancePlacement_t: 8,
    pynvml.c_nvmlGpuInstanceProfileInfo_t: 48,
    pynvml.c_nvmlGpuInstanceProfileInfo_v2_t: 152,
    pynvml.c_nvmlGpuInstanceInfo_t: 24,
    pynvml.c_nvmlComputeInstanceProfileInfo_t: 36,
    pynvml.c_nvmlComputeInstanceProfileInfo_v2_t: 136,
    pynvml.c_nvmlComputeInstanceInfo_t: 32,
    pynvml.c_nvmlEventData_t: 32,
    pynvml.c_nvmlGpuFabricInfo_t: 28,
    pynvml.c_nvmlGpuFabricInfo_v2_t: 36,
    pynvml.c_nvmlGpuFabricInfo_v3_t: 40,
    pynvml.c_nvmlGpuFabricInfo_v4_t: 548,
    pynvml.c_nvmlC2cModeInfo_v1_t: 4,
    pynvml.c_nvmlDeviceAddressingMode_t: 8,
    pynvml.c_nvmlPlatformInfo_v1_t: 44,
    pynvml.c_nvmlPlatformInfo_v2_t: 44,
    pynvml.c_nvmlProcessInfo_v2_t: 24,
    pynvml.c_nvmlProcessInfo_v3_t: 24,
    pynvml.c_nvmlUUID_t: 52,
    pynvml.c_nvmlFieldValue_t: 40,
    pynvml.c_nvmlSystemDriverBranchInfo_v1_t: 84,
    pynvml.c_nvmlDeviceCapabilities_v1_t: 8,
    pynvml.c_nvmlExcludedDeviceInfo_t: 148,
    pynvml.c_nvmlEccErrorCounts_t: 32,
}


@pytest.mark.parametrize(("structure", "size"), SIZES.items(), ids=lambda one: str(one))
def test_a_structure_of_pynvml_has_the_size_that_the_library_writes(
    structure: type[ctypes.Structure], size: int
) -> None:
    assert ctypes.sizeof(structure) == size


@pytest.fixture
def c(nvml_on: NvmlOn) -> ctypes.CDLL:
    nvml_on("gb200-nvl72")
    return ctypes.CDLL("libnvidia-ml.so.1")


Call = Callable[[ctypes.CDLL, object, object], int]
# What asks with a versioned structure: the call, the structure's size, the versions it takes.
VERSIONED: dict[str, tuple[Call, int, tuple[int, ...]]] = {
    "memory": (lambda c, h, s: c.nvmlDeviceGetMemoryInfo_v2(h, s), 40, (2,)),
    "pci": (lambda c, h, s: c.nvmlDeviceGetPciInfoExt(h, s), 64, (1,)),
    "profile by enum": (
        lambda c, h, s: c.nvmlDeviceGetGpuInstanceProfileInfoV(h, 0, s),
        152,
        (2, 3),
    ),
    "profile by id": (
        lambda c, h, s: c.nvmlDeviceGetGpuInstanceProfileInfoByIdV(h, 19, s),
        152,
        (2, 3),
    ),
    "fabric v2": (lambda c, h, s: c.nvmlDeviceGetGpuFabricInfoV(h, s), 36, (2,)),
    "fabric v3": (lambda c, h, s: c.nvmlDeviceGetGpuFabricInfoV(h, s), 40, (3,)),
    "addressing": (lambda c, h, s: c.nvmlDeviceGetAddressingMode(h, s), 8, (1,)),
    "capabilities": (lambda c, h, s: c.nvmlDeviceGetCapabilities(h, s), 8, (1,)),
    "platform": (lambda c, h, s: c.nvmlDeviceGetPlatformInfo(h, s), 44, (1, 2)),
    "temperature": (lambda c, h, s: c.nvmlDeviceGetTemperatureV(h, s), 12, (1,)),
    "branch": (lambda c, _, s: c.nvmlSystemGetDriverBranch(s, 80), 84, (1,)),
}


@pytest.mark.parametrize(("call", "size", "versions"), VERSIONED.values(), ids=VERSIONED)
def test_a_structure_is_taken_in_its_versions_and_no_other(
    c: ctypes.CDLL, call: Call, size: int, versions: tuple[int, ...]
) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    answers = {}
    for version in range(6):
        buffer = (ctypes.c_uint32 * 64)(size | version << 24)
        answers[version] = call(c, handle, ctypes.byref(buffer))
    assert {version for version, code in answers.items() if code == 0} == set(versions)
    assert {code for code in answers.values() if code} == {25}


@pytest.mark.parametrize(("call", "size", "versions"), VERSIONED.values(), ids=VERSIONED)
def test_a_structure_of_another_size_is_refused(
    c: ctypes.CDLL, call: Call, size: int, versions: tuple[int, ...]
) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    buffer = (ctypes.c_uint32 * 64)(size + 4 | versions[0] << 24)
    assert call(c, handle, ctypes.byref(buffer)) == 25


@pytest.mark.parametrize(("call", "size", "versions"), VERSIONED.values(), ids=VERSIONED)
def test_no_byte_beyond_a_structure_is_written(
    c: ctypes.CDLL, call: Call, size: int, versions: tuple[int, ...]
) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for version in versions:
        buffer = (ctypes.c_uint8 * 256)(*([0xA5] * 256))
        ctypes.c_uint32.from_buffer(buffer).value = size | version << 24
        if call is VERSIONED["temperature"][0]:
            ctypes.c_uint32.from_buffer(buffer, 4).value = 0
        assert call(c, handle, ctypes.byref(buffer)) == 0
        assert bytes(buffer[size:]) == b"\xa5" * (256 - size)


def test_the_bytes_around_the_fabric_state_are_zero(c: ctypes.CDLL) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    buffer = (ctypes.c_uint8 * 40)(*([0xA5] * 40))
    ctypes.c_uint32.from_buffer(buffer).value = 0x03000028
    assert c.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(buffer)) == 0
    assert bytes(buffer[28:32]) == bytes([3, 0, 0, 0])
    assert bytes(buffer[36:40]) == bytes([1, 0, 0, 0])


def test_a_uuid_of_another_version_is_refused(c: ctypes.CDLL) -> None:
    uuid = pynvml.c_nvmlUUID_t()
    uuid.version = 0x02000034
    assert c.nvmlDeviceGetHandleByUUIDV(ctypes.byref(uuid), ctypes.byref(ctypes.c_void_p())) == 25


LEGACY = {
    "nvmlDeviceGetPciInfo": 32,
    "nvmlDeviceGetPciInfo_v1": 32,
    "nvmlDeviceGetPciInfo_v2": 52,
    "nvmlDeviceGetPciInfo_v3": 68,
}


@pytest.mark.parametrize(("name", "size"), LEGACY.items())
def test_an_old_pci_structure_is_written_in_its_old_size(
    c: ctypes.CDLL, name: str, size: int
) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    buffer = (ctypes.c_uint8 * 128)(*([0xA5] * 128))
    assert c[name](handle, ctypes.byref(buffer)) == 0
    assert bytes(buffer[:16]) == b"0000:29:00.0\0".ljust(16, b"\xa5")
    assert bytes(buffer[size:]) == b"\xa5" * (128 - size)
