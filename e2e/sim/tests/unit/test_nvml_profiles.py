# SPDX-License-Identifier: Apache-2.0
"""What unmodified pynvml says about each GPU of each profile is what the description says."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pynvml
import pytest
from nvdra_sim.configuration import hardware_catalog
from nvdra_sim.description import Gpu, MigProfile, NodeDescription
from nvdra_sim.testing.nvml_fixtures import NvmlOn

MIB = 2**20
PROFILES = [name for name in hardware_catalog.profile_names() if name != "none"]


@pytest.fixture(params=PROFILES)
def node(request: pytest.FixtureRequest, nvml_on: NvmlOn) -> NodeDescription:
    return nvml_on(request.param).description()


def handles(node: NodeDescription) -> Iterator[tuple[Gpu, Any]]:
    for index, gpu in enumerate(node.gpus):
        yield gpu, pynvml.nvmlDeviceGetHandleByIndex(index)


def answer(function: Callable[..., Any], *arguments: object) -> Any:
    """The result, or the code of the error, so that expectations compare as values."""
    try:
        result = function(*arguments)
    except pynvml.NVMLError as error:
        return ("code", error.value)
    return result.value if isinstance(result, ctypes.c_uint) else result


NOT_SUPPORTED = ("code", pynvml.NVML_ERROR_NOT_SUPPORTED)
INVALID_ARGUMENT = ("code", pynvml.NVML_ERROR_INVALID_ARGUMENT)
NOT_FOUND = ("code", pynvml.NVML_ERROR_NOT_FOUND)


def test_the_driver_has_its_versions(node: NodeDescription) -> None:
    assert pynvml.nvmlSystemGetDriverVersion() == node.driver.version
    assert pynvml.nvmlSystemGetNVMLVersion() == f"13.{node.driver.version}"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000


def test_the_gpus_come_in_bus_order(node: NodeDescription) -> None:
    assert pynvml.nvmlDeviceGetCount() == len(node.gpus)
    seen = [pynvml.nvmlDeviceGetPciInfo(handle).busId for _, handle in handles(node)]
    assert seen == sorted(seen)
    assert [pynvml.nvmlDeviceGetIndex(handle) for _, handle in handles(node)] == [
        gpu.index for gpu in node.gpus
    ]


def test_identity_is_the_profiles(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        assert {
            "name": pynvml.nvmlDeviceGetName(handle),
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
            "serial": answer(pynvml.nvmlDeviceGetSerial, handle),
            "brand": pynvml.nvmlDeviceGetBrand(handle),
            "architecture": pynvml.nvmlDeviceGetArchitecture(handle),
            "capability": pynvml.nvmlDeviceGetCudaComputeCapability(handle),
            "vbios": pynvml.nvmlDeviceGetVbiosVersion(handle),
            "part": pynvml.nvmlDeviceGetBoardPartNumber(handle),
            "cores": pynvml.nvmlDeviceGetNumGpuCores(handle),
            "gsp": pynvml.nvmlDeviceGetGspFirmwareVersion(handle),
        } == {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "minor": gpu.minor,
            "serial": gpu.serial or NOT_SUPPORTED,
            "brand": 14,
            "architecture": gpu.architecture,
            "capability": gpu.compute_capability,
            "vbios": gpu.vbios,
            "part": gpu.board_part_number,
            "cores": gpu.cores,
            "gsp": node.driver.version.encode(),
        }


def test_module_ids_are_the_profiles(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        module_id = ctypes.c_uint()
        assert pynvml.nvmlDeviceGetModuleId(handle, ctypes.byref(module_id)) == 0
        assert module_id.value == gpu.module_id


def test_pci_is_told_alike_in_every_shape(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        pci, extended = pynvml.nvmlDeviceGetPciInfo(handle), pynvml.nvmlPciInfoExt_v1_t()
        extended.version = pynvml.nvmlPciInfoExt_v1
        pynvml.nvmlDeviceGetPciInfoExt(handle, ctypes.byref(extended))
        assert pci.busId == f"{gpu.bus.domain:08X}:{gpu.bus.bus:02X}:{gpu.bus.device:02X}.0"
        assert pci.busIdLegacy == f"{gpu.bus.domain:04X}:{gpu.bus.bus:02X}:{gpu.bus.device:02X}.0"
        assert (pci.domain, pci.bus, pci.device) == gpu.bus.sort_key
        assert pci.pciDeviceId == gpu.pci_device << 16 | 0x10DE
        assert pci.pciSubSystemId == gpu.pci_subsystem << 16 | 0x10DE
        assert extended.busId == pci.busId
        assert (extended.pciDeviceId, extended.pciSubSystemId) == (
            pci.pciDeviceId,
            pci.pciSubSystemId,
        )
        assert (extended.baseClass, extended.subClass) == (3, 2)


def test_memory_is_the_models_and_reserved_counts_as_used_in_the_first_version(
    node: NodeDescription,
) -> None:
    for gpu, handle in handles(node):
        first = pynvml.nvmlDeviceGetMemoryInfo(handle)
        second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        free = (gpu.memory_mib - gpu.reserved_mib) * MIB
        assert (first.total, first.used, first.free) == (
            gpu.memory_mib * MIB,
            gpu.reserved_mib * MIB,
            free,
        )
        assert (second.total, second.reserved, second.used, second.free) == (
            gpu.memory_mib * MIB,
            gpu.reserved_mib * MIB,
            0,
            free,
        )
        assert pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total == gpu.bar1_mib * MIB


def test_modes_start_as_configured(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        addressing = pynvml.c_nvmlDeviceAddressingMode_t()
        assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 0
        assert pynvml.nvmlDeviceGetComputeMode(handle) == 0
        assert pynvml.nvmlDeviceGetVirtualizationMode(handle) == gpu.virtualization
        assert pynvml.nvmlDeviceGetEccMode(handle) == [int(gpu.ecc), int(gpu.ecc)]
        assert answer(raw_c2c, handle) == (NOT_SUPPORTED if gpu.c2c is None else int(gpu.c2c))
        assert raw_addressing(handle, addressing) == (3 if gpu.addressing is None else 0)
        assert addressing.value == (gpu.addressing or 0)


def raw_addressing(handle: Any, mode: ctypes.Structure) -> int:
    mode.version = 0x01000008
    code: int = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetAddressingMode(
        handle, ctypes.byref(mode)
    )
    return code


def raw_c2c(handle: Any) -> int:
    enabled: int = pynvml.nvmlDeviceGetC2cModeInfoV(handle).isC2cEnabled
    return enabled


def test_no_process_uses_a_gpu(node: NodeDescription) -> None:
    for _, handle in handles(node):
        assert pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle) == []
        assert pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle) == []
        assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle) == []


def test_an_idle_gpu_reports_the_limits_of_its_model(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        limits = [gpu.power_min_w * 1000, gpu.power_max_w * 1000]
        assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == limits
        assert pynvml.nvmlDeviceGetPowerUsage(handle) == gpu.idle_power_w * 1000
        assert pynvml.nvmlDeviceGetTemperature(handle, 0) == gpu.idle_temperature_c
        assert pynvml.nvmlDeviceGetTemperatureV(handle, 0) == gpu.idle_temperature_c
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
        assert pynvml.nvmlDeviceGetMaxClockInfo(handle, 0) == gpu.clock_graphics_mhz
        assert pynvml.nvmlDeviceGetMaxClockInfo(handle, 2) == gpu.clock_memory_mhz
        assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) == gpu.pcie_generation


# MIG, off


def test_mig_is_off_where_the_model_has_it_and_unknown_elsewhere(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        expected = NOT_SUPPORTED if gpu.mig is None else [0, 0]
        assert answer(pynvml.nvmlDeviceGetMigMode, handle) == expected
        assert answer(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) == 0
        assert answer(pynvml.nvmlDeviceIsMigDeviceHandle, handle) == 0
        assert answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0) == ("code", 6)
        assert answer(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) == ("code", 2)
        no_id = NOT_SUPPORTED if gpu.mig is None else INVALID_ARGUMENT
        assert answer(pynvml.nvmlDeviceGetGpuInstanceId, handle) == no_id
        assert answer(pynvml.nvmlDeviceGetComputeInstanceId, handle) == no_id
        assert answer(pynvml.nvmlDeviceGetAttributes_v2, handle) == NOT_SUPPORTED
        nothing = NOT_SUPPORTED if gpu.mig is None else NOT_FOUND
        assert answer(pynvml.nvmlDeviceGetGpuInstanceById, handle, 1) == nothing


def test_with_mig_off_no_instance_exists_and_as_many_as_possible_fit(
    node: NodeDescription,
) -> None:
    for gpu, handle in handles(node):
        capacity = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity
        if gpu.mig is None:
            assert answer(capacity, handle, 0) == NOT_SUPPORTED
            continue
        for profile in gpu.mig.table.profiles:
            found, count = (pynvml.c_nvmlGpuInstance_t * 8)(), ctypes.c_uint(99)
            pynvml.nvmlDeviceGetGpuInstances(handle, profile.id, found, ctypes.byref(count))
            assert count.value == 0
            assert capacity(handle, profile.id) == profile.max_instances


def test_instance_profiles_are_known_with_mig_off(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        expected = {} if gpu.mig is None else {one.enum: one for one in gpu.mig.table.profiles}
        for enum in range(18):
            for version in (1, 2):
                info = answer(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, enum, version)
                if enum not in expected:
                    assert info == NOT_SUPPORTED
                else:
                    assert described(info) == numbers(expected[enum])
            if enum in expected:
                assert info.name == f"MIG {expected[enum].name}"
                assert placements(handle, expected[enum].id) == [
                    (start, expected[enum].placement_size)
                    for start in expected[enum].placement_starts
                ]
        wrong = answer(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, 18)
        assert wrong == ("code", pynvml.NVML_ERROR_INVALID_ARGUMENT)


def numbers(profile: MigProfile) -> tuple[int, ...]:
    return (
        profile.id,
        profile.slices,
        profile.max_instances,
        profile.sms,
        profile.copy_engines,
        profile.decoders,
        profile.encoders,
        profile.jpeg_engines,
        profile.ofa_engines,
        profile.memory_mib,
        profile.capabilities & 1,
    )


def described(info: Any) -> tuple[int, ...]:
    return (
        info.id,
        info.sliceCount,
        info.instanceCount,
        info.multiprocessorCount,
        info.copyEngineCount,
        info.decoderCount,
        info.encoderCount,
        info.jpegCount,
        info.ofaCount,
        info.memorySizeMB,
        info.isP2pSupported,
    )


def placements(handle: Any, profile_id: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint()
    get = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    get(handle, profile_id, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    get(handle, profile_id, array, ctypes.byref(count))
    return [(placement.start, placement.size) for placement in array]


def test_too_small_an_array_for_placements_is_refused_and_told_the_size(nvml_on: NvmlOn) -> None:
    nvml_on("dgx-h100")
    handle, count = pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint(3)
    array = (pynvml.c_nvmlGpuInstancePlacement_t * 3)()
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, 19, array, ctypes.byref(count))
    assert count.value == 7


# Fabric and rack


def test_the_fabric_is_told_alike_in_every_shape(node: NodeDescription) -> None:
    for gpu, handle in handles(node):
        first = pynvml.c_nvmlGpuFabricInfo_t()
        second, third = pynvml.c_nvmlGpuFabricInfo_v2_t(), pynvml.c_nvmlGpuFabricInfo_v3_t()
        fourth = pynvml.c_nvmlGpuFabricInfo_v4_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(first))
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(second))
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(third))
        pynvml.nvmlDeviceGetGpuFabricInfo_v4(handle, ctypes.byref(fourth))
        expected = gpu.fabric.cluster_uuid, gpu.fabric.status, gpu.fabric.state
        for info in (first, second, third, fourth):
            told = UUID(bytes=bytes(info.clusterUuid)), info.status, info.state
            assert told == expected
        assert {info.cliqueId for info in (first, second, third)} == {gpu.fabric.clique_id}
        cliques = [fourth.cliques[place].id for place in range(fourth.numCliques)]
        assert cliques == ([gpu.fabric.clique_id] if gpu.fabric.state == 3 else [])
        assert {second.healthMask, third.healthMask, fourth.healthMask} == {gpu.fabric.health_mask}
        assert {third.healthSummary, fourth.healthSummary} == {gpu.fabric.health_summary}


def test_a_rack_board_knows_its_place(nvml_on: NvmlOn) -> None:
    node = nvml_on("gb200-nvl72").description()
    for gpu, handle in handles(node):
        assert gpu.platform is not None
        info = pynvml.c_nvmlPlatformInfo_v2_t()
        pynvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
        raw = bytes(info)
        assert raw[4:20] == gpu.platform.ib_guid.bytes
        assert raw[20:36].rstrip(b"\0").decode() == gpu.platform.chassis_serial
        assert tuple(raw[36:41]) == (
            gpu.platform.slot,
            gpu.platform.tray,
            gpu.platform.host,
            gpu.platform.peer_type,
            gpu.module_id,
        )


def test_a_board_outside_a_rack_has_no_place_in_one(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    handle, info = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.c_nvmlPlatformInfo_v2_t()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))


# Topology


def test_neighbours_are_as_near_as_their_roots_and_numa_nodes(node: NodeDescription) -> None:
    for one, handle in handles(node):
        for other, neighbour in handles(node):
            level = pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, neighbour)
            if one is other:
                expected = 0
            elif one.pcie_root == other.pcie_root:
                expected = 30
            else:
                expected = 40 if one.numa_node == other.numa_node else 50
            assert level == expected


def test_the_nearest_gpus_of_a_board_are_found_by_level(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100").description()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    levels = {
        level: [
            pynvml.nvmlDeviceGetUUID(near)
            for near in pynvml.nvmlDeviceGetTopologyNearestGpus(handle, level)
        ]
        for level in (30, 40, 50)
    }
    uuids = [gpu.uuid for gpu in node.gpus]
    assert levels == {30: uuids[1:2], 40: uuids[2:4], 50: uuids[4:]}


def test_processors_are_those_of_the_numa_node(nvml_on: NvmlOn) -> None:
    nvml_on("dgx-h100")
    first, last = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 7))
    assert processors(pynvml.nvmlDeviceGetCpuAffinity(first, 4)) == set(range(56))
    assert processors(pynvml.nvmlDeviceGetCpuAffinity(last, 4)) == set(range(56, 112))
    assert list(pynvml.nvmlDeviceGetMemoryAffinity(last, 1, 0)) == [2]


def processors(words: Any) -> set[int]:
    return {64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1}


def test_links_are_up_as_far_as_the_board_has_some(nvml_on: NvmlOn) -> None:
    node = nvml_on("dgx-h100").description()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    states = [answer(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(19)]
    assert states == [1] * node.gpus[0].nvlinks + [("code", 2)] * (19 - node.gpus[0].nvlinks)


def test_a_board_without_links_does_not_support_them(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for link in (0, 18):
        assert answer(pynvml.nvmlDeviceGetNvLinkState, handle, link) == NOT_SUPPORTED


# Looking up


def test_a_gpu_is_found_by_everything_that_names_it(node: NodeDescription) -> None:
    for gpu, _ in handles(node):
        ways = [
            pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid),
            pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid.removeprefix("GPU-")),
            pynvml.nvmlDeviceGetHandleByPciBusId(gpu.bus_id),
            pynvml.nvmlDeviceGetHandleByPciBusId(f"{gpu.bus.domain:08X}{gpu.bus_id[-8:].upper()}"),
        ]
        if gpu.serial:
            ways.append(pynvml.nvmlDeviceGetHandleBySerial(gpu.serial))
        assert {pynvml.nvmlDeviceGetUUID(handle) for handle in ways} == {gpu.uuid}


def test_a_gpu_is_found_by_its_uuid_as_bytes(nvml_on: NvmlOn) -> None:
    wanted = nvml_on("t4").description().gpus[2].uuid
    uuid, found = pynvml.c_nvmlUUID_t(), ctypes.c_void_p()
    uuid.type = 2
    ctypes.memmove(ctypes.addressof(uuid.value), UUID(wanted[4:]).bytes, 16)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlDeviceGetHandleByUUIDV(ctypes.byref(uuid), ctypes.byref(found)) == 0
    name = ctypes.create_string_buffer(80)
    assert library.nvmlDeviceGetUUID(found, name, 80) == 0
    assert name.value.decode() == wanted


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0000:3b:00.0", 0),
        ("3B:0", 0),
        ("00000000:3B:00.0", 0),
        ("3b:00.0", 0),
        ("0000:3c:00.0", 6),
        ("0001:3b:00.0", 6),
        ("", 2),
        ("3b", 2),
        ("3b:00.0x", 2),
        ("g:00.0", 2),
        ("0:0:3b:00.0", 2),
        ("3b:00.", 2),
        ("-3b:00.0", 2),
    ],
)
def test_bus_ids_may_be_written_short_and_long_but_not_wrong(
    nvml_on: NvmlOn, text: str, code: int
) -> None:
    nvml_on("t4")
    found = answer(pynvml.nvmlDeviceGetHandleByPciBusId, text)
    assert (found[1] if isinstance(found, tuple) else 0) == code


def test_an_unknown_uuid_is_not_found(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    for uuid in ("GPU-00000000-0000-0000-0000-000000000000", "MIG-1", ""):
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID(uuid)


def test_an_index_beyond_the_last_gpu_is_invalid(nvml_on: NvmlOn) -> None:
    nvml_on("t4")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(4)


def test_a_node_without_gpus_counts_none(nvml_on: NvmlOn) -> None:
    nvml_on("none")
    assert pynvml.nvmlDeviceGetCount() == 0
