# SPDX-License-Identifier: Apache-2.0
"""MIG devices of the node file as unmodified pynvml sees them.

Source: docs/reference/nvml-simulator.md §7.
"""

import ctypes
import subprocess
import sys
from math import ceil, floor
from typing import Any
from uuid import UUID, uuid5

import pynvml
import pytest
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.description import MigProfile
from nvdra_sim.errors import ConfigError
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file.state import State
from nvdra_sim.testing.nvml_fixtures import NvmlOn

BOARDS = [
    key for key, model in hardware_catalog.gpu_models().items() if model.mig_table is not None
]
CUT = [
    {"profile": "3g.40gb", "start": 4, "compute": ["2c", "1c"]},
    {"profile": "2g.20gb", "start": 0, "compute": ["1c", "1c"]},
    {"profile": "1g.10gb+me", "start": 2, "compute": ["1c"]},
]


def with_mig(
    nvml_on: NvmlOn, instances: list[dict[str, Any]], board: str = "h100", **mig: Any
) -> State:
    """A node of three boards: one that is cut so, one in MIG mode only, one without."""
    addresses = [f"0000:{bus}:00.0" for bus in ("10", "20", "30")]
    modes: list[dict[str, Any]] = [{"mode": True, "instances": instances}, {"mode": True}, {}]
    boards = [
        {"model": board, "bus_id": address, "mig": mode, "minor": 2 - place}
        for place, (address, mode) in enumerate(zip(addresses, modes, strict=True))
    ]
    return nvml_on(None, gpus=boards, mig=mig)


def gpu(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def mig_devices(index: int = 0) -> list[Any]:
    """As callers look for them: every index below the maximum, skipping what is not there."""
    found = []
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(index))):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(index), place))
        except pynvml.NVMLError_NotFound:
            continue
    return found


def ids(device: Any) -> tuple[int, int]:
    return (
        pynvml.nvmlDeviceGetGpuInstanceId(device),
        pynvml.nvmlDeviceGetComputeInstanceId(device),
    )


def code(call: Any, *arguments: Any) -> int:
    """What a call answers."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


@pytest.mark.parametrize("board", BOARDS)
def test_every_profile_at_every_place_is_what_its_table_says(nvml_on: NvmlOn, board: str) -> None:
    model = hardware_catalog.gpu_models()[board]
    table = hardware_catalog.mig_tables()[str(model.mig_table)]
    first_id = {1: 0, 2: 1, 4: 3, 8: 7}[table.memory_slices // table.profiles[0].placement_size]
    seen = set()
    for profile in table.profiles:
        for start in profile.placement_starts:
            wanted = {"profile": profile.name, "start": start, "compute": [f"{profile.slices}c"]}
            with_mig(nvml_on, [wanted], board)
            (device,) = mig_devices()
            instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), ids(device)[0])
            info = pynvml.nvmlGpuInstanceGetInfo(instance)
            assert (info.profileId, info.placement.start, info.placement.size) == (
                profile.id,
                start,
                profile.placement_size,
            )
            seen.add(info.id)
            attributes = pynvml.nvmlDeviceGetAttributes(device)
            assert attributes.multiprocessorCount == profile.sms
            assert attributes.sharedDecoderCount == profile.decoders
            assert attributes.gpuInstanceSliceCount == attributes.computeInstanceSliceCount
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            assert memory.total >> 20 == attributes.memorySizeMB == profile.memory_mib
            suffix = profile.name.partition("gb")[2]
            name = f"{attributes.gpuInstanceSliceCount}g.{gigabytes(attributes)}gb{suffix}"
            assert pynvml.nvmlDeviceGetName(device) == f"{model.name} MIG {name}"
    assert {first_id, 0} <= seen


def gigabytes(attributes: Any) -> int:
    """The number in a profile's name, by the formula that consumers use (§7.8)."""
    total_mib = pynvml.nvmlDeviceGetMemoryInfo(gpu()).total >> 20
    eighths = ceil(8 * attributes.memorySizeMB / total_mib) / 8
    rounded: int = floor(eighths * ceil(total_mib / 1024) + 0.5)
    return rounded


def test_devices_are_numbered_densely_by_their_instances(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    assert [ids(device) for device in mig_devices()] == [(2, 0), (2, 1), (3, 0), (3, 1), (9, 0)]
    assert [pynvml.nvmlDeviceGetIndex(device) for device in mig_devices()] == [0, 1, 2, 3, 4]
    by_index = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
    assert [code(by_index, gpu(), index) for index in (4, 5, 6, 7)] == [0, 6, 6, 2]


def test_indices_may_have_holes(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT, sparse_index=True)
    by_index = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
    assert [code(by_index, gpu(), index) for index in range(7)] == [0, 6, 0, 0, 0, 0, 6]
    assert [pynvml.nvmlDeviceGetIndex(device) for device in mig_devices()] == [0, 2, 3, 4, 5]


def test_a_board_in_mig_mode_may_have_no_device(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    assert pynvml.nvmlDeviceGetMigMode(gpu(1)) == [1, 1]
    assert mig_devices(1) == []
    assert pynvml.nvmlDeviceGetMigMode(gpu(2)) == [0, 0]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(2)) == 0
    assert code(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu(2), 0) == 6
    assert code(pynvml.nvmlDeviceGetGpuInstanceById, gpu(2), 0) == 6


def test_a_device_is_found_by_its_uuid_in_every_form(nvml_on: NvmlOn) -> None:
    node = with_mig(nvml_on, CUT)
    parent = node.gpu("0").uuid
    for device in mig_devices():
        uuid = pynvml.nvmlDeviceGetUUID(device)
        instance, compute = ids(device)
        name = f"{instance}/{compute}"
        assert uuid == f"MIG-{uuid5(UUID(parent.removeprefix('GPU-')), name)}"
        for found in (
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
            pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{parent}/{name}"),
            pynvml.nvmlDeviceGetHandleByUUIDV(uuid.encode(), pynvml.NVML_UUID_TYPE_ASCII),
            pynvml.nvmlDeviceGetHandleByUUIDV(
                UUID(uuid.removeprefix("MIG-")).bytes, pynvml.NVML_UUID_TYPE_BINARY
            ),
        ):
            assert address(found) == address(device)
    assert code(pynvml.nvmlDeviceGetHandleByUUID, f"MIG-{parent}/4/0") == 6


def address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def test_fresh_uuids_depend_on_what_was_made_before(nvml_on: NvmlOn) -> None:
    node = with_mig(nvml_on, CUT, uuid="fresh")
    parent = UUID(node.gpu("0").uuid.removeprefix("GPU-"))
    expected = [("2/0", 2), ("2/1", 3), ("3/0", 5), ("3/1", 6), ("9/0", 8)]
    assert [pynvml.nvmlDeviceGetUUID(device) for device in mig_devices()] == [
        f"MIG-{uuid5(parent, f'{name}/{count}')}" for name, count in expected
    ]


def test_halves_may_be_numbered_in_reverse(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT, gi_id_order="reversed")
    assert [ids(device) for device in mig_devices()] == [(1, 0), (1, 1), (3, 0), (3, 1), (9, 0)]


def test_a_device_knows_its_gpu_and_a_gpu_is_no_device(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    device = mig_devices()[2]
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu()).value == 0
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert address(parent) == address(gpu())
    assert code(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, gpu()) == 2
    assert code(pynvml.nvmlDeviceGetGpuInstanceId, gpu()) == 2
    assert code(pynvml.nvmlDeviceGetComputeInstanceId, gpu()) == 2
    assert code(pynvml.nvmlDeviceGetAttributes, gpu()) == 3


def test_a_device_shares_what_its_gpu_is_made_of(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    device = mig_devices()[0]
    for ask in (
        pynvml.nvmlDeviceGetBrand,
        pynvml.nvmlDeviceGetArchitecture,
        pynvml.nvmlDeviceGetCudaComputeCapability,
        pynvml.nvmlDeviceGetVirtualizationMode,
    ):
        assert ask(device) == ask(gpu())
    assert pynvml.nvmlDeviceGetPciInfo(device).busId == pynvml.nvmlDeviceGetPciInfo(gpu()).busId


@pytest.mark.parametrize(
    "ask",
    [
        pynvml.nvmlDeviceGetMinorNumber,
        pynvml.nvmlDeviceGetSerial,
        pynvml.nvmlDeviceGetPersistenceMode,
        pynvml.nvmlDeviceGetComputeMode,
        pynvml.nvmlDeviceGetBAR1MemoryInfo,
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetPowerUsage,
    ],
    ids=lambda one: one.__name__,
)
def test_what_only_a_board_has_is_not_supported_on_a_device(nvml_on: NvmlOn, ask: Any) -> None:
    with_mig(nvml_on, CUT)
    assert (code(ask, gpu(2)), code(ask, mig_devices()[0])) == (0, 3)


def test_a_part_of_an_instance_has_its_share_of_multiprocessors(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    facts = [pynvml.nvmlDeviceGetAttributes(device) for device in mig_devices()]
    assert [
        (one.multiprocessorCount, one.computeInstanceSliceCount, one.gpuInstanceSliceCount)
        for one in facts
    ] == [(32, 2, 3), (16, 1, 3), (16, 1, 2), (16, 1, 2), (16, 1, 1)]
    names = [pynvml.nvmlDeviceGetName(device) for device in mig_devices()]
    assert [name.rpartition(" ")[2] for name in names] == [
        "2c.3g.40gb",
        "1c.3g.40gb",
        "1c.2g.20gb",
        "1c.2g.20gb",
        "1g.10gb+me",
    ]


# GPU instances and compute instances


def listed(call: Any, of: Any, profile: int) -> list[int]:
    """The ids of the instances of a profile."""
    room, count = (ctypes.c_void_p * 16)(), ctypes.c_uint()
    call(of, profile, room, ctypes.byref(count))
    is_gpu = call is pynvml.nvmlDeviceGetGpuInstances
    kind = pynvml.c_nvmlGpuInstance_t if is_gpu else pynvml.c_nvmlComputeInstance_t
    info = pynvml.nvmlGpuInstanceGetInfo if is_gpu else pynvml.nvmlComputeInstanceGetInfo
    return [info(ctypes.cast(room[place] or 0, kind)).id for place in range(count.value)]


def test_instances_are_listed_by_profile(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    assert [listed(pynvml.nvmlDeviceGetGpuInstances, gpu(), one) for one in (9, 14, 20, 5)] == [
        [2],
        [3],
        [9],
        [],
    ]
    second = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), 3)
    assert listed(pynvml.nvmlGpuInstanceGetComputeInstances, second, 0) == [0, 1]
    assert listed(pynvml.nvmlGpuInstanceGetComputeInstances, second, 1) == []
    assert code(pynvml.nvmlDeviceGetGpuInstanceById, gpu(), 4) == 6
    assert code(pynvml.nvmlGpuInstanceGetComputeInstanceById, second, 2) == 6


def test_a_compute_instance_leads_to_its_mig_device(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    for device in mig_devices():
        instance, compute = ids(device)
        parent = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), instance)
        handle = pynvml.nvmlGpuInstanceGetComputeInstanceById(parent, compute)
        info = pynvml.nvmlComputeInstanceGetInfo(handle)
        assert (address(info.device), info.id) == (address(device), compute)
        assert address(info.gpuInstance) == address(parent)
    assert (info.profileId, info.placement.start, info.placement.size) == (0, 0, 1)


@pytest.mark.parametrize(
    ("profile", "slices", "offered"),
    [
        ("1g.10gb", 1, {0: 1}),
        ("2g.20gb", 2, {0: 2, 1: 1}),
        ("3g.40gb", 3, {0: 3, 1: 1, 2: 1}),
        ("4g.40gb", 4, {0: 4, 1: 2, 3: 1}),
        ("7g.80gb", 7, {0: 7, 1: 3, 2: 2, 3: 1, 4: 1}),
    ],
)
def test_an_instance_can_be_cut_as_its_size_allows(
    nvml_on: NvmlOn, profile: str, slices: int, offered: dict[int, int]
) -> None:
    with_mig(nvml_on, [{"profile": profile, "start": 0}])
    found = [code(pynvml.nvmlDeviceGetGpuInstanceById, gpu(), one) for one in range(15)].index(0)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), found)
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    answers = {one: code(ask, instance, one, 0) for one in range(10)}
    assert answers == {one: 0 if one in offered else 2 if one == 9 else 3 for one in range(10)}
    infos = {one: ask(instance, one, 0) for one in offered}
    assert {one: info.instanceCount for one, info in infos.items()} == offered
    assert all(info.id == one for one, info in infos.items())
    whole = max(infos.values(), key=lambda info: info.sliceCount)
    assert (whole.sliceCount, whole.name) == (slices, f"MIG {profile}")
    remaining = pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity
    assert {one: remaining(instance, one) for one in offered} == offered
    assert mig_devices() == []


def test_further_ways_to_cut_are_offered_on_request(nvml_on: NvmlOn) -> None:
    whole = [{"profile": "7g.80gb", "start": 0}]
    with_mig(nvml_on, whole, ci_extra=["nvl", "rev1"])
    instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), 0)
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    assert (ask(instance, 8, 0).id, ask(instance, 8, 0).sliceCount) == (8, 7)
    assert code(ask, instance, 7, 0) == 3
    assert code(ask, instance, 8, 1) == 2


def test_compute_instances_leave_room_for_others(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, [{"profile": "7g.80gb", "start": 0, "compute": ["3c", "1c"]}])
    instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), 0)
    remaining = pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity
    assert [remaining(instance, one) for one in (0, 1, 2, 3, 4)] == [3, 1, 1, 0, 0]
    room, count = (pynvml.c_nvmlComputeInstancePlacement_t * 8)(), ctypes.c_uint(8)
    pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance, 2, room, ctypes.byref(count)
    )
    assert [(room[place].start, room[place].size) for place in range(count.value)] == [
        (0, 3),
        (4, 3),
    ]


@pytest.mark.parametrize("board", BOARDS)
def test_what_still_fits_is_what_the_node_file_would_accept(nvml_on: NvmlOn, board: str) -> None:
    """The library's rules against those of the configuration, which were written apart."""
    table = hardware_catalog.mig_tables()[str(hardware_catalog.gpu_models()[board].mig_table)]
    for first in table.profiles:
        there = [{"profile": first.name, "start": first.placement_starts[-1]}]
        with_mig(nvml_on, there, board)
        for profile in table.profiles:
            left = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(), profile.id)
            assert left == accepted_beside(there, board, profile), f"{profile.name} by {first.name}"


def accepted_beside(there: list[dict[str, Any]], board: str, profile: MigProfile) -> int:
    """How many instances of a profile a node file may add."""
    head = {"apiVersion": "nvdra.sim/v1", "kind": "Node", "metadata": {"name": "n"}}
    accepted = list(there)
    for start in profile.placement_starts:
        more = [*accepted, {"profile": profile.name, "start": start}]
        mig = {"mode": True, "instances": more}
        try:
            node_config.load(
                {**head, "gpus": [{"model": board, "bus_id": "0000:10:00.0", "mig": mig}]}
            )
        except ConfigError:
            continue
        accepted = more
    return len(accepted) - len(there)


# Handles


def test_handles_are_the_same_while_their_instance_lives(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    assert [address(one) for one in mig_devices()] == [address(one) for one in mig_devices()]
    assert len({address(one) for one in mig_devices()}) == 5


def test_a_handle_of_one_kind_is_none_of_another(nvml_on: NvmlOn) -> None:
    with_mig(nvml_on, CUT)
    device = mig_devices()[0]
    instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), 2)
    as_instance = ctypes.cast(device, pynvml.c_nvmlGpuInstance_t)
    as_device = ctypes.cast(instance, pynvml.c_nvmlDevice_t)
    between = ctypes.cast((address(device) or 0) + 1, pynvml.c_nvmlDevice_t)
    assert code(pynvml.nvmlGpuInstanceGetInfo, as_instance) == 2
    assert code(pynvml.nvmlDeviceGetUUID, as_device) == 2
    assert code(pynvml.nvmlDeviceGetUUID, between) == 2
    assert code(pynvml.nvmlComputeInstanceGetInfo, as_instance) == 2


def test_questions_about_instances_may_be_for_the_privileged_only(nvml_on: NvmlOn) -> None:
    mig = {"mode": True, "instances": CUT}
    board = {"model": "h100", "bus_id": "0000:10:00.0", "mig": mig}
    nvml_on(None, gpus=[board], node={"privilege_queries": True, "privilege": "euid"})
    assert code(pynvml.nvmlDeviceGetGpuInstanceById, gpu(), 2) == 0
    script = """
import ctypes, pynvml
ctypes.CDLL(LIBRARY, ctypes.RTLD_GLOBAL)
pynvml.nvmlInit()
try:
    pynvml.nvmlDeviceGetGpuInstanceById(pynvml.nvmlDeviceGetHandleByIndex(0), 2)
except pynvml.NVMLError as error:
    print(error.value)
"""
    script = script.replace("LIBRARY", repr(str(nvml_library.build())))
    nobody = ("unshare", "--map-user=65534", sys.executable, "-c", script)
    done = subprocess.run(nobody, capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"
