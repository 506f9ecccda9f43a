# SPDX-License-Identifier: Apache-2.0
"""NVML creates and destroys MIG instances, as unmodified pynvml asks it to.

Source: docs/reference/nvml-simulator.md §6.4, §6.6, §7.3-7.6, §8.
"""

import ctypes
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvdra_sim import incidents, mig_changes
from nvdra_sim.configuration import hardware_catalog
from nvdra_sim.description import MigProfile
from nvdra_sim.incidents import InstanceRef
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file.state import State, StateError
from nvdra_sim.testing.nvml_fixtures import NvmlOn

BOARDS = [
    key for key, model in hardware_catalog.gpu_models().items() if model.mig_table is not None
]
ONE, DOUBLE, TWO, THREE, FOUR, SEVEN = 19, 15, 14, 9, 5, 0  # profile ids of 7-slice boards
INVALID, NOT_SUPPORTED, NO_PERMISSION, LOST, IN_USE, RESOURCES = 2, 3, 4, 15, 19, 23
MIG_CHANGE = 0x100
LOAD = (
    f"import ctypes, pynvml; ctypes.CDLL({str(nvml_library.build())!r}, ctypes.RTLD_GLOBAL)\n"
    "pynvml.nvmlInit(); board = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
)


def node_with(nvml_on: NvmlOn, board: str = "h100", count: int = 2, **sections: Any) -> State:
    """Boards of one model: all in MIG mode but the last, without instances."""
    modes = [{"mode": place < count - 1} for place in range(count)]
    boards = [
        {"model": board, "bus_id": f"0000:{10 + place}:00.0", "mig": mode}
        for place, mode in enumerate(modes)
    ]
    return nvml_on(None, gpus=boards, **sections)


def gpu(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def place(start: int, size: int) -> Any:
    return ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size))


def create(profile: int, start: int, size: int, board: int = 0) -> Any:
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(board), profile, place(start, size))


def id_of(instance: Any) -> int:
    return int(pynvml.nvmlGpuInstanceGetInfo(instance).id)


def code(call: Callable[..., Any], *arguments: Any) -> int:
    """What a call answers."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def profiles(board: str) -> tuple[MigProfile, ...]:
    return hardware_catalog.mig_tables()[
        str(hardware_catalog.gpu_models()[board].mig_table)
    ].profiles


# Creation


def test_a_device_is_made_by_the_sequence_that_drivers_use(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    board = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(gpu(1)))
    assert pynvml.nvmlDeviceGetMigMode(board) == [0, 0]
    assert pynvml.nvmlDeviceSetMigMode(board, 1) == 0
    profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(
        board, pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE
    )
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(board, profile.id, place(4, 4))
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (2, THREE, 4, 4)
    cut = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 2, 0)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, cut.id)
    made = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
    assert (made.id, made.profileId, made.placement.start, made.placement.size) == (0, 2, 0, 3)
    uuid = pynvml.nvmlDeviceGetUUID(made.device)
    assert pynvml.nvmlDeviceGetName(made.device).endswith("MIG 3g.40gb")
    found = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetGpuInstanceId(found) == 2
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, 0)) == uuid


def test_it_is_destroyed_by_the_sequence_that_drivers_use(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    number = mig_changes.create(node, node.gpu("0"), "2g.20gb", 2)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), number)
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    device = pynvml.nvmlComputeInstanceGetInfo_v2(compute).device
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == 0
    assert code(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, 0) == 6
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == 0
    assert code(pynvml.nvmlDeviceGetGpuInstanceById, gpu(), number) == 6
    for gone in (device, compute):
        assert code(pynvml.nvmlDeviceGetUUID, gone) == INVALID
    assert code(pynvml.nvmlGpuInstanceGetInfo, instance) == INVALID
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == 0


@pytest.mark.parametrize("board", BOARDS)
def test_every_profile_is_made_at_every_placement(nvml_on: NvmlOn, board: str) -> None:
    node_with(nvml_on, board)
    for profile in profiles(board):
        for start in profile.placement_starts:
            instance = create(profile.id, start, profile.placement_size)
            compute = pynvml.nvmlGpuInstanceCreateComputeInstance(
                instance, {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile.slices]
            )
            device = pynvml.nvmlComputeInstanceGetInfo_v2(compute).device
            assert pynvml.nvmlDeviceGetName(device).endswith(f" MIG {profile.name}")
            assert pynvml.nvmlDeviceGetAttributes_v2(device).memorySizeMB == profile.memory_mib
            pynvml.nvmlComputeInstanceDestroy(compute)
            pynvml.nvmlGpuInstanceDestroy(instance)


def test_without_a_placement_the_first_free_one_of_the_table_is_taken(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    create(ONE, 1, 1)
    made = [pynvml.nvmlDeviceCreateGpuInstance(gpu(), profile) for profile in (TWO, ONE, ONE)]
    places = [pynvml.nvmlGpuInstanceGetInfo(each).placement for each in made]
    assert [(each.start, each.size) for each in places] == [(2, 2), (0, 1), (4, 1)]
    assert code(pynvml.nvmlDeviceCreateGpuInstance, gpu(), SEVEN) == RESOURCES


def test_what_nvml_makes_is_what_simctl_makes(nvml_on: NvmlOn) -> None:
    """The same record: ids, UUIDs, incarnations."""
    node = node_with(nvml_on, count=3)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance
    instance = create(THREE, 4, 4)
    compute(instance, 1)
    compute(instance, 0)
    twin = node_with(nvml_on, count=3)
    mig_changes.create(twin, twin.gpu("0"), "3g.40gb", 4, ["2c", "1c"])
    assert bytes(twin.snapshot().tables[0]) == bytes(node.snapshot().tables[0])
    assert bytes(twin.snapshot().gpus[0]) == bytes(node.snapshot().gpus[0])


BEHAVIOURS = [{}, {"uuid": "fresh", "gi_id_order": "reversed"}]


@pytest.mark.parametrize("mig", BEHAVIOURS, ids=["default", "fresh-reversed"])
@pytest.mark.parametrize("board", BOARDS)
def test_nvml_and_simctl_agree_on_everything_that_fits(
    nvml_on: NvmlOn, board: str, mig: dict[str, Any]
) -> None:
    """Random sequences on two equal GPUs, one changed by each."""
    chance = random.Random(board)
    node = node_with(nvml_on, board, 3, mig=mig)
    table = profiles(board)
    refused = 0
    for _ in range(60):
        now = node.snapshot().tables[0].instances
        existing = [number for number, record in enumerate(now) if record.in_use]
        if existing and chance.random() < 0.35:
            number = chance.choice(existing)
            mig_changes.destroy(node, node.gpu("0"), number)
            pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceGetGpuInstanceById(gpu(1), number))
            continue
        profile = chance.choice(table)
        start = chance.choice(profile.placement_starts)
        answer = code(create, profile.id, start, profile.placement_size, 1)
        try:
            mig_changes.create(node, node.gpu("0"), profile.name, start, [])
        except StateError:
            refused += 1
            assert answer == RESOURCES
        else:
            assert answer == 0
        tables = node.snapshot().tables
        assert bytes(tables[0]) == bytes(tables[1])
    assert refused > 5


# Refusals


@pytest.mark.parametrize(
    ("profile", "start", "size", "answer"),
    [
        (ONE, 0, 1, RESOURCES),  # the same as an existing one
        (ONE, 3, 1, RESOURCES),  # inside it
        (FOUR, 0, 4, RESOURCES),
        (SEVEN, 0, 8, RESOURCES),
        (THREE, 4, 4, 0),
        (THREE, 2, 4, INVALID),
        (THREE, 4, 3, INVALID),
        (THREE, 8, 4, INVALID),
        (999, 4, 4, INVALID),
    ],
)
def test_a_gpu_instance_that_cannot_be_is_refused(
    nvml_on: NvmlOn, profile: int, start: int, size: int, answer: int
) -> None:
    node = node_with(nvml_on)
    create(THREE, 0, 4)
    before = node.generation
    assert code(create, profile, start, size) == answer
    assert (node.generation > before) == (answer == 0)


def test_a_limit_is_insufficient_resources_too(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    create(20, 0, 1)  # 1g.10gb+me, of which there is one
    assert code(create, 20, 1, 1) == RESOURCES
    assert code(create, ONE, 1, 1) == 0


@pytest.mark.parametrize(
    ("profile", "start", "size", "answer"),
    [(0, 0, 1, RESOURCES), (1, 0, 2, RESOURCES), (2, 0, 3, RESOURCES), (0, 2, 1, 0),
     (1, 2, 2, INVALID), (1, 0, 1, INVALID), (0, 3, 1, INVALID), (3, 0, 4, INVALID),
     (77, 0, 1, INVALID)],
)  # fmt: skip
def test_a_compute_instance_that_cannot_be_is_refused(
    nvml_on: NvmlOn, profile: int, start: int, size: int, answer: int
) -> None:
    node_with(nvml_on)
    instance = create(THREE, 0, 4)
    at = ctypes.byref(pynvml.c_nvmlComputeInstancePlacement_t(0, 2))
    pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 1, at)
    wanted = ctypes.byref(pynvml.c_nvmlComputeInstancePlacement_t(start, size))
    create_at = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement
    assert code(create_at, instance, profile, wanted) == answer


def test_compute_instances_take_the_lowest_free_id_and_the_first_free_place(
    nvml_on: NvmlOn,
) -> None:
    node_with(nvml_on)
    instance = create(FOUR, 0, 4)
    made = [pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(3)]
    pynvml.nvmlComputeInstanceDestroy(made[1])
    again = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    info = pynvml.nvmlComputeInstanceGetInfo_v2(again)
    assert (info.id, info.placement.start) == (1, 1)
    assert code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 1) == RESOURCES
    assert code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 0) == 0
    assert code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 0) == RESOURCES


def test_pointers_are_checked_before_handles(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    instance = create(THREE, 0, 4)
    out, at = ctypes.c_void_p(), place(4, 4)
    calls: list[tuple[Any, ...]] = [
        (library.nvmlDeviceCreateGpuInstance, gpu(), THREE, None),
        (library.nvmlDeviceCreateGpuInstance, None, THREE, ctypes.byref(out)),
        (library.nvmlDeviceCreateGpuInstanceWithPlacement, gpu(), THREE, None, ctypes.byref(out)),
        (library.nvmlDeviceCreateGpuInstanceWithPlacement, gpu(), THREE, at, None),
        (library.nvmlGpuInstanceCreateComputeInstance, instance, 2, None),
        (library.nvmlGpuInstanceCreateComputeInstance, None, 2, ctypes.byref(out)),
        (library.nvmlGpuInstanceCreateComputeInstanceWithPlacement, instance, 2, None, None),
        (library.nvmlGpuInstanceDestroy, None),
        (library.nvmlGpuInstanceDestroy, gpu()),
        (library.nvmlComputeInstanceDestroy, None),
        (library.nvmlComputeInstanceDestroy, instance),
    ]
    for function, *arguments in calls:
        assert function(*arguments) == INVALID, function.__name__


def test_nothing_is_made_without_mig_mode_or_on_a_mig_device(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    assert code(create, ONE, 0, 1, 1) == NOT_SUPPORTED
    assert code(pynvml.nvmlDeviceCreateGpuInstance, gpu(1), ONE) == NOT_SUPPORTED
    instance = create(ONE, 0, 1)
    device = pynvml.nvmlComputeInstanceGetInfo_v2(
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    ).device
    assert code(pynvml.nvmlDeviceCreateGpuInstance, device, ONE) == NOT_SUPPORTED


def test_a_gpu_instance_with_something_in_it_is_in_use(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    instance = create(TWO, 0, 2)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == IN_USE
    where = InstanceRef(id_of(instance), 0)
    incidents.add_process(node, node.gpu("0"), 4711, where=where)
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == IN_USE
    incidents.remove_process(node, node.gpu("0"), 4711)
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == 0
    incidents.add_process(node, node.gpu("0"), 4711, where=InstanceRef(id_of(instance)))
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == IN_USE
    incidents.remove_process(node, node.gpu("0"), 4711)
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == 0


def test_a_lost_gpu_changes_nothing_any_more(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    instance = create(TWO, 0, 2)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    board = gpu()
    node.lose(node.gpu("0"))
    assert code(pynvml.nvmlDeviceCreateGpuInstance, board, ONE) == LOST
    assert code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 0) == LOST
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == LOST
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == LOST
    node.restore(node.gpu("0"))
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == 0


def test_instances_are_changed_by_the_privileged_only(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on, node={"privilege": "euid"})
    create(TWO, 0, 2)
    script = """
    def code(call, *arguments):
        try:
            call(*arguments)
        except pynvml.NVMLError as error:
            print(error.value, end=" ")
    code(pynvml.nvmlDeviceCreateGpuInstance, board, 19)
    at = ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(4, 1))
    code(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, board, 19, at)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(board, 3)
    code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 0)
    at = ctypes.byref(pynvml.c_nvmlComputeInstancePlacement_t(0, 1))
    code(pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement, instance, 0, at)
    code(pynvml.nvmlGpuInstanceDestroy, instance)
    code(pynvml.nvmlDeviceSetMigMode, board, 0)
    """
    before = node.generation
    nobody = ("unshare", "--map-user=65534")
    assert python(script, *nobody) == f"{NO_PERMISSION} " * 6
    assert node.generation == before


# Handles, identities


def test_a_device_that_is_made_again_has_the_same_uuid_and_another_handle(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    seen = []
    for _ in range(2):
        instance = create(ONE, 3, 1)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        device = pynvml.nvmlComputeInstanceGetInfo_v2(compute).device
        seen.append((instance, compute, device, pynvml.nvmlDeviceGetUUID(device)))
        if len(seen) == 1:
            pynvml.nvmlComputeInstanceDestroy(compute)
            pynvml.nvmlGpuInstanceDestroy(instance)
    (instance, compute, device, uuid), again = seen
    assert uuid == again[3]
    assert code(pynvml.nvmlDeviceGetUUID, device) == INVALID
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == INVALID
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == INVALID
    assert code(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, 0) == INVALID
    assert code(pynvml.nvmlDeviceGetUUID, again[2]) == 0


def test_a_handle_may_stand_for_what_is_at_its_place_later(nvml_on: NvmlOn) -> None:
    """NVML's reference allows that. Who keeps handles has to notice."""
    node_with(nvml_on, mig={"reuse_handles": True, "uuid": "fresh"})
    seen = []
    for profile in (TWO, DOUBLE):  # both are GPU instance 3 at 0
        instance = create(profile, 0, 2)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        device = pynvml.nvmlComputeInstanceGetInfo_v2(compute).device
        seen.append((device, pynvml.nvmlDeviceGetUUID(device)))
        if profile == TWO:
            pynvml.nvmlComputeInstanceDestroy(compute)
            assert code(pynvml.nvmlDeviceGetUUID, device) == INVALID
            pynvml.nvmlGpuInstanceDestroy(instance)
    (first, before), (_, after) = seen
    assert pynvml.nvmlDeviceGetUUID(first) == after != before
    assert pynvml.nvmlDeviceGetName(first).endswith("1g.20gb")


def test_handles_do_not_run_out(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    for _ in range(2000):
        instance = create(ONE, 0, 1)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlComputeInstanceGetInfo_v2(compute).device)
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    assert node.snapshot().gpus[0].instances_made == 4000


def test_a_reboot_takes_instances_and_mode_away(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    instance = create(ONE, 0, 1)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    incidents.reboot(node)
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == INVALID
    assert code(pynvml.nvmlComputeInstanceDestroy, compute) == INVALID
    assert code(create, ONE, 0, 1) == NOT_SUPPORTED
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == 0
    again = create(ONE, 0, 1)
    assert id_of(again) == 7
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == INVALID
    assert code(pynvml.nvmlGpuInstanceDestroy, again) == 0


def test_every_change_is_an_event_of_the_whole_gpu(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu(), MIG_CHANGE, events)
    instance = create(ONE, 0, 1)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert code(create, ONE, 0, 1) == RESOURCES
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    for _ in range(4):
        event = pynvml.nvmlEventSetWait_v2(events, 0)
        assert (event.eventType, event.eventData) == (MIG_CHANGE, 0)
        assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert code(pynvml.nvmlEventSetWait_v2, events, 0) == 10
    pynvml.nvmlEventSetFree(events)


def test_the_time_of_an_event_is_that_of_the_clock_that_simctl_sets(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    incidents.freeze_clock(node)
    create(ONE, 0, 1)
    mig_changes.create(node, node.gpu("0"), "1g.10gb", 1)
    first, second = node.events()
    assert first.time_ns == second.time_ns


# Several processes and threads


def python(script: str, *command: str) -> str:
    """Runs a script with the library in another process, and returns its output."""
    done = subprocess.run(
        [*command, sys.executable, "-c", LOAD + textwrap.dedent(script)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_that_fill_a_gpu_share_it(nvml_on: NvmlOn) -> None:
    """Each place is given once, although both want all."""
    node = node_with(nvml_on)
    script = """
    made = 0
    for start in range(7):
        try:
            at = ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, 1))
            instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(board, 19, at)
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
            made += 1
        except pynvml.NVMLError_InsufficientResources:
            pass
    print(made)
    """
    with ThreadPoolExecutor() as pool:
        made = [int(number) for number in pool.map(lambda _: python(script), range(2))]
    assert sum(made) == 7
    records = node.snapshot().tables[0].instances
    assert [number for number, each in enumerate(records) if each.in_use] == list(range(7, 14))
    assert len({bytes(records[number].compute[0].uuid) for number in range(7, 14)}) == 7


def test_what_one_process_makes_another_destroys(nvml_on: NvmlOn) -> None:
    node_with(nvml_on)
    instance = create(THREE, 4, 4)
    script = """
    instance = pynvml.nvmlDeviceGetGpuInstanceById(board, 2)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlComputeInstanceGetInfo_v2(compute).device))
    """
    uuid = python(script).strip()
    assert code(pynvml.nvmlGpuInstanceDestroy, instance) == IN_USE
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetComputeInstanceId(device) == 0
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    pynvml.nvmlComputeInstanceDestroy(compute)
    script = "pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceGetGpuInstanceById(board, 2))"
    python(script)
    assert code(pynvml.nvmlGpuInstanceGetInfo, instance) == INVALID


def test_threads_that_come_and_go_leave_nothing(nvml_on: NvmlOn) -> None:
    node = node_with(nvml_on)
    board = gpu()

    def cycle(start: int) -> int:
        for _ in range(50):
            instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(board, ONE, place(start, 1))
            compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
            device = pynvml.nvmlComputeInstanceGetInfo_v2(compute).device
            assert pynvml.nvmlDeviceGetGpuInstanceId(device) == 7 + start
            pynvml.nvmlComputeInstanceDestroy(compute)
            pynvml.nvmlGpuInstanceDestroy(instance)
        return start

    with ThreadPoolExecutor(7) as pool:
        assert list(pool.map(cycle, range(7))) == list(range(7))
    assert not any(record.in_use for record in node.snapshot().tables[0].instances)


def wait_until_blocked(node: State) -> None:
    """Until somebody waits for the lock on the state file, which this process holds."""
    locks, inode = Path("/proc/locks"), f":{node.path.stat().st_ino} "
    while not any("->" in line and inode in line for line in locks.read_text().splitlines()):
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("lost", "answers"), [(False, [INVALID] * 3), (True, [LOST] * 3)], ids=["gone", "lost"]
)
def test_who_had_to_wait_for_another_change_finds_what_it_left(
    nvml_on: NvmlOn, lost: bool, answers: list[int]
) -> None:
    """All checks of a call are made again under the lock."""
    node = node_with(nvml_on)
    full, empty = create(TWO, 0, 2), create(TWO, 2, 2)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(full, 0)
    with ThreadPoolExecutor() as pool:
        for call, arguments, answer in zip(
            (
                pynvml.nvmlGpuInstanceCreateComputeInstance,
                pynvml.nvmlComputeInstanceDestroy,
                pynvml.nvmlGpuInstanceDestroy,
            ),
            ((full, 0), (compute,), (empty,)),
            answers,
            strict=True,
        ):
            with node.transaction() as now:
                waiting = pool.submit(code, call, *arguments)
                wait_until_blocked(node)
                before = bytes(now.tables[0])
                now.gpus[0].lost = lost
                if not lost:
                    now.tables[0] = type(now.tables[0])()
            assert waiting.result() == answer
            with node.transaction() as now:
                now.gpus[0].lost = 0
                now.tables[0] = type(now.tables[0]).from_buffer_copy(before)


def test_another_process_sees_no_half_made_instance(nvml_on: NvmlOn) -> None:
    """One that enumerates while another makes and destroys finds all of a device or none."""
    node_with(nvml_on)
    script = """
    for turn in range(300):
        instance = pynvml.nvmlDeviceCreateGpuInstance(board, 9)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    """
    with ThreadPoolExecutor() as pool:
        changes = pool.submit(python, script)
        seen = set()
        while not changes.done():
            with suppress(pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
                device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), 0)
                seen.add((pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device)))
        changes.result()
    assert {name.rpartition(" ")[2] for name, _ in seen} <= {"3g.40gb"}
    assert len(seen) <= 1
