# SPDX-License-Identifier: Apache-2.0
"""MIG devices are made when a claim is prepared, and destroyed when it is unprepared."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from nvdra_api.quantity import Quantity
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.hardware import driver_installation
from nvdra_testing.hardware.gpu_modes import gpu_instances, is_in_mig_mode
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_edits, cdi_names

GATE = "--feature-gates=DynamicMIG=true"
LARGE, SMALL, NEXT_SMALL = (
    "gpu-0-mig-3g40gb-9-4",
    "gpu-0-mig-1g10gb-19-0",
    "gpu-0-mig-1g10gb-19-1",
)
WHOLE = "gpu-0"
SHORT_S = 4.0
"""Of a call with so much time, 2 s are for waiting."""

CREATE, CREATE_COMPUTE, DESTROY_COMPUTE, DESTROY, SWITCH = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceSetMigMode",
)
IN_PREPARE = (SWITCH, CREATE, "nvmlGpuInstanceGetInfo", CREATE_COMPUTE, "nvmlDeviceGetUUID")
IN_UNPREPARE = (DESTROY_COMPUTE, DESTROY, SWITCH)
"""Calls in which the plugin is killed."""

MIG_MODE = {"overrides": {"gpus": [{"index": 0, "mig": {"mode": True}}]}}
CLIENTS_BLOCK = {"switch_blocked_by_clients": "all"}

T = TypeVar("T")


def spec_of(claim: ClaimRef) -> str:
    return f"k8s.gpu.nvidia.com-claim-device_{claim.uid}.yaml"


def own_specs(rig: Rig) -> list[str]:
    """The specs of claims, and what an interrupted write has left."""
    return sorted(path.name for path in rig.node.cdi.glob("*claim-device*"))


def started_records(rig: Rig) -> set[str]:
    with sqlite3.connect(f"file:{rig.plugin_dir / 'state.sqlite'}?mode=ro", uri=True) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
        if "started_records" not in tables:
            return set()
        return {row[0] for row in connection.execute("SELECT uid FROM started_records")}


async def prepare(rig: Rig, *devices: str, **how: Any) -> tuple[ClaimRef, Any]:
    claim = rig.create_claim(*devices, **how)
    return claim, (await rig.dra.prepare([claim]))[claim.uid]


async def prepared(rig: Rig, *devices: str, **how: Any) -> tuple[ClaimRef, Any]:
    claim, answer = await prepare(rig, *devices, **how)
    assert not answer.error
    return claim, answer


async def unprepare(rig: Rig, *claims: ClaimRef) -> None:
    answers = await rig.dra.unprepare(list(claims))
    assert [answers[claim.uid].error for claim in claims] == [""] * len(claims)


def assert_nothing_is_left(rig: Rig) -> None:
    assert gpu_instances(rig.node) == []
    assert not is_in_mig_mode(rig.node)
    assert own_specs(rig) == []
    assert rig.recorded_claims() == {}
    assert started_records(rig) == set()


async def killed(rig: Rig) -> None:
    """Wait for the plugin to die by a rule, and remove the rule."""
    await rig.wait_until(lambda: rig.process.process.poll() is not None, "the plugin's death")
    rig.node.simctl("fault", "rm", "all")


async def start_again(rig: Rig, *flags: str) -> None:
    await rig.kubelet.restart()
    await rig.start(*(flags or (GATE,)))


async def test_a_device_is_made_with_its_claim_and_gone_with_it(rig: Rig) -> None:
    await rig.start(GATE)
    published = rig.slices()
    claim, answer = await prepared(rig, LARGE)
    assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]
    assert own_specs(rig) == [spec_of(claim)]
    (name,) = cdi_names(answer)
    assert name == f"k8s.gpu.nvidia.com/claim-device={claim.uid}-{LARGE}"
    nodes = [node["path"] for node in cdi_edits(rig, name)["deviceNodes"]]
    assert "/dev/nvidia0" in nodes
    assert len([node for node in nodes if "nvidia-caps" in node]) == 2
    (record,) = rig.recorded_claims().values()
    (device,) = json.loads(record)["devices"]
    (made,) = json.loads(rig.node.simctl("mig", "list", "--json"))
    assert device["uuid"] == made["uuid"]
    assert (await rig.dra.prepare([claim]))[claim.uid] == answer
    assert rig.node.nvml_calls(CREATE) == 1
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)
    assert rig.slices() == published
    assert not rig.node.nvml_calls("nvmlDeviceGetHandleByUUID")


async def test_devices_of_one_gpu_are_made_for_two_claims_and_the_whole_gpu_waits(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    first, second = rig.create_claim(LARGE), rig.create_claim(SMALL, NEXT_SMALL)
    answers = await rig.dra.prepare([first, second])
    assert [answers[claim.uid].error for claim in (first, second)] == ["", ""]
    assert gpu_instances(rig.node) == [(0, "1g.10gb", 0), (0, "1g.10gb", 1), (0, "3g.40gb", 4)]
    whole = rig.create_claim(WHOLE)
    text = await rig.dra.refusal(whole)
    assert text.startswith("DeviceInUse: ")
    await unprepare(rig, first)
    assert gpu_instances(rig.node) == [(0, "1g.10gb", 0), (0, "1g.10gb", 1)]
    await unprepare(rig, second)
    assert not (await rig.dra.prepare([whole]))[whole.uid].error
    text = await prepare_shortly(rig, SMALL)
    assert text.startswith("DeviceInUse: ")
    await unprepare(rig, whole)
    assert_nothing_is_left(rig)


async def prepare_shortly(rig: Rig, *devices: str) -> str:
    return await rig.dra.refusal(rig.create_claim(*devices))


async def test_an_overlapping_device_waits_for_the_one_that_is_held(rig: Rig) -> None:
    await rig.start(GATE)
    large, _ = await prepared(rig, LARGE)
    wanted = rig.create_claim("gpu-0-mig-2g20gb-14-4")
    text = await rig.dra.refusal(wanted)
    assert text.startswith("DeviceInUse: ")
    assert large.name in text
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.dra.prepare([wanted]))
        await asyncio.sleep(0.2)
        await unprepare(rig, large)
    assert not call.result()[wanted.uid].error
    assert gpu_instances(rig.node) == [(0, "2g.20gb", 4)]


async def test_four_gpus_make_their_devices_side_by_side(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.simctl("slow", "5000", "--function", CREATE)
    claims = [rig.create_claim(f"gpu-{gpu}-mig-1g10gb-19-0") for gpu in range(4)]
    started = time.monotonic()
    answers = await rig.dra.prepare(claims)
    assert time.monotonic() - started < 15, "one after another they need 20 s"
    assert [answers[claim.uid].error for claim in claims] == [""] * 4
    assert [gpu for gpu, _, _ in gpu_instances(rig.node)] == [0, 1, 2, 3]
    rig.node.simctl("fault", "rm", "all")
    await unprepare(rig, *claims)
    assert_nothing_is_left(rig)


async def test_a_claim_of_two_gpus_has_both_or_nothing(rig: Rig) -> None:
    await rig.start(GATE)
    both = (SMALL, "gpu-1-mig-3g40gb-9-0")
    rig.node.simctl(
        "fault", "add", CREATE_COMPUTE, "--gpu", "1", "--result", "UNKNOWN", "--times", "1"
    )
    claim, answer = await prepare(rig, *both)
    assert answer.error.startswith("DeviceUnhealthy: ")
    assert_nothing_is_left(rig)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert gpu_instances(rig.node) == [(0, "1g.10gb", 0), (1, "3g.40gb", 0)]
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.soak
async def test_work_goes_on_when_the_kubelet_gives_up_and_its_retry_finds_the_device(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    rig.node.simctl("slow", "5000", "--function", CREATE)
    claim = rig.create_claim(LARGE)
    text = await rig.dra.refusal(claim)
    assert text.startswith("DeadlineExceeded: ")
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert not answer.error
    assert rig.node.nvml_calls(CREATE) == 1
    rig.node.simctl("fault", "rm", "all")
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ((CREATE_COMPUTE, "--result", "UNKNOWN"), "DeviceUnhealthy: "),
        ((CREATE, "--result", "UNKNOWN"), "DeviceUnhealthy: "),
        ((CREATE, "--result", "UNKNOWN", "--do-work"), "DeviceUnhealthy: "),
        (("nvmlComputeInstanceGetInfo_v2", "--result", "UNKNOWN"), "DeviceUnhealthy: "),
        ((SWITCH, "--result", "IN_USE"), "DeviceInUse: "),
        ((SWITCH, "--activation-status", "IN_USE"), "DeviceInUse: "),
        ((SWITCH, "--activation-status", "RESET_REQUIRED"), "MigModeRequiresReset: "),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, tuple) else None,
)
async def test_a_failure_leaves_nothing_and_the_retry_works(
    rig: Rig, rule: tuple[str, ...], reason: str
) -> None:
    await rig.start(GATE)
    rig.node.simctl("fault", "add", *rule, "--times", "1")
    claim, answer = await prepare(rig, LARGE)
    assert answer.error.startswith(reason)
    rig.node.simctl("fault", "rm", "all")
    assert_nothing_is_left(rig)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


async def test_a_device_in_use_is_destroyed_as_soon_as_it_is_free(rig: Rig) -> None:
    await rig.start(GATE)
    claim, _ = await prepared(rig, LARGE)
    rig.node.simctl("fault", "add", DESTROY, "--result", "IN_USE")
    error = (await rig.dra.unprepare([claim]))[claim.uid].error
    assert error.startswith("DeviceInUse: ")
    assert started_records(rig) == {claim.uid}
    assert (await prepare_shortly(rig, WHOLE)).startswith("DeviceInUse: ")
    rig.node.simctl("fault", "rm", "all")
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.soak
async def test_what_could_not_be_undone_is_undone_without_a_call(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.simctl("fault", "add", CREATE_COMPUTE, "--result", "UNKNOWN")
    rig.node.simctl("fault", "add", DESTROY, "--result", "IN_USE")
    claim, answer = await prepare(rig, LARGE)
    assert answer.error.startswith("DeviceUnhealthy: ")
    assert started_records(rig) == {claim.uid}
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: not started_records(rig), "the roll-back")
    assert_nothing_is_left(rig)


async def test_a_claim_that_was_not_undone_is_finished_by_its_retry(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.simctl("fault", "add", CREATE_COMPUTE, "--result", "UNKNOWN", "--times", "1")
    rig.node.simctl("fault", "add", DESTROY, "--result", "IN_USE")
    claim, answer = await prepare(rig, LARGE)
    assert answer.error.startswith("DeviceUnhealthy: ")
    # While it cannot be destroyed, nobody else undoes it before the retry.
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert rig.node.nvml_calls(CREATE) == 1
    rig.node.simctl("fault", "rm", "all")
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.soak
async def test_a_gpu_that_is_lost_meanwhile_keeps_the_record_until_it_is_back(rig: Rig) -> None:
    await rig.start(GATE)
    claim, _ = await prepared(rig, LARGE)
    rig.node.simctl("gpu", "lose", "0")
    error = (await rig.dra.unprepare([claim], timeout_s=SHORT_S))[claim.uid].error
    assert error
    assert started_records(rig) == {claim.uid}
    rig.node.simctl("gpu", "restore", "0")
    await rig.wait_until(lambda: not started_records(rig), "the roll-back")
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.soak
async def test_a_gpu_that_is_lost_between_its_two_instances_leaves_nothing(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.simctl("fault", "add", CREATE_COMPUTE, "--delay-ms", "-1")
    claim = rig.create_claim(LARGE)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.dra.prepare([claim]))
        await rig.wait_until(
            lambda: gpu_instances(rig.node) == [(0, "3g.40gb", 4)],
            "the GPU instance",
        )
        rig.node.simctl("gpu", "lose", "0")
        rig.node.simctl("fault", "rm", "all")
    assert call.result()[claim.uid].error.startswith("DeviceUnhealthy: ")
    assert claim.uid not in rig.recorded_claims()
    assert started_records(rig) == {claim.uid}, "its place is the claim's until it is undone"
    other, _ = await prepared(rig, "gpu-1-mig-3g40gb-9-4")
    await unprepare(rig, other)
    rig.node.simctl("gpu", "restore", "0")
    await rig.wait_until(lambda: not started_records(rig), "the roll-back")
    assert_nothing_is_left(rig)
    await rig.wait_until(lambda: WHOLE in rig.devices(), "the GPU")
    claim, _ = await prepared(rig, LARGE)
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


CLIENT = """
import ctypes, sys, pynvml
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
pynvml.nvmlInit()
pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
print("ready", flush=True)
input()
"""


@contextmanager
def client_of_first_gpu(rig: Rig) -> Iterator[None]:
    """Another process that has the first GPU open, such as an exporter of metrics."""
    library = str(next(rig.node.roots.driver.rglob("libnvidia-ml.so.1")))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLIENT, library], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.communicate("\n")
    assert process.returncode == 0


@pytest.mark.parametrize("rig", [("dgx-h100", {"mig": CLIENTS_BLOCK})], indirect=True)
async def test_while_a_program_keeps_the_gpu_from_being_switched_the_claim_says_so(
    rig: Rig,
) -> None:
    await rig.start(f"{GATE},NVMLDeviceHealthCheck=true")
    with client_of_first_gpu(rig):
        claim, answer = await prepare(rig, LARGE)
        assert answer.error.startswith("DeviceInUse: ")
        assert "a program uses the GPU" in answer.error
        assert "DCGM" in answer.error
        assert_nothing_is_left(rig)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


def of_first_gpu(rig: Rig) -> set[str]:
    return {name for name in rig.devices() if name == WHOLE or name.startswith(f"{WHOLE}-")}


def events_of_node(rig: Rig, reason: str) -> list[str]:
    found = rig.events(reason)
    return [each["message"] for each in found if each["involvedObject"]["kind"] == "Node"]


@pytest.mark.parametrize("rig", [("dgx-h100", {"mig": CLIENTS_BLOCK})], indirect=True)
async def test_a_gpu_that_cannot_enter_mig_mode_is_offered_whole_alone(rig: Rig) -> None:
    await rig.start(GATE)
    everything = of_first_gpu(rig)
    with client_of_first_gpu(rig):
        claim, answer = await prepare(rig, LARGE)
        assert answer.error.startswith("DeviceInUse: ")
        await rig.wait_until(lambda: of_first_gpu(rig) == {WHOLE}, "no MIG devices of gpu-0")
        assert "gpu-1-mig-3g40gb-9-4" in rig.devices()
        _, page = rig.process.get("/readyz?verbose")
        assert "gpu-0 offers nothing that needs its MIG mode switched" in page
        await rig.wait_until(lambda: bool(events_of_node(rig, "DeviceInUse")), "an Event")
        (text,) = events_of_node(rig, "DeviceInUse")
        assert "DCGM" in text
        whole, _ = await prepared(rig, WHOLE)
        await unprepare(rig, whole)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: of_first_gpu(rig) == everything, "all that gpu-0 had")
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.parametrize("rig", [("dgx-h100", {"mig": CLIENTS_BLOCK, **MIG_MODE})], indirect=True)
async def test_a_gpu_that_cannot_leave_mig_mode_is_not_offered_whole(rig: Rig) -> None:
    await rig.start(GATE)
    everything = of_first_gpu(rig)
    with client_of_first_gpu(rig):
        claim, answer = await prepare(rig, WHOLE)
        assert answer.error.startswith("DeviceInUse: ")
        await rig.wait_until(lambda: of_first_gpu(rig) == everything - {WHOLE}, "no whole gpu-0")
        await prepared(rig, LARGE)
    assert (await rig.dra.refusal(claim)).startswith("DeviceInUse: ")
    assert of_first_gpu(rig) == everything - {WHOLE}


@pytest.mark.parametrize("rig", [("dgx-h100", {"mig": CLIENTS_BLOCK})], indirect=True)
async def test_a_mode_that_a_program_keeps_after_a_claim_is_left_when_it_ends(rig: Rig) -> None:
    await rig.start(GATE)
    everything = of_first_gpu(rig)
    claim, _ = await prepared(rig, LARGE)
    with client_of_first_gpu(rig):
        await unprepare(rig, claim)
        await rig.wait_until(lambda: of_first_gpu(rig) == everything - {WHOLE}, "no whole gpu-0")
        again, _ = await prepared(rig, LARGE)
        await unprepare(rig, again)
        assert "gpu-0 offers nothing that needs" in rig.process.get("/readyz?verbose")[1]
        await rig.stop()
        await rig.start(GATE)
        await rig.wait_until(lambda: of_first_gpu(rig) == everything - {WHOLE}, "no whole gpu-0")
    await rig.wait_until(lambda: of_first_gpu(rig) == everything, "all that gpu-0 had")
    await rig.wait_until(lambda: not started_records(rig), "no tombstone")
    assert_nothing_is_left(rig)


async def test_a_gpu_stays_in_mig_mode_if_the_node_keeps_it(rig: Rig) -> None:
    await rig.start(GATE, "--keep-mig-mode")
    claim, _ = await prepared(rig, LARGE)
    await unprepare(rig, claim)
    assert gpu_instances(rig.node) == []
    assert is_in_mig_mode(rig.node)
    assert rig.node.nvml_calls(SWITCH) == 1
    for device in (SMALL, WHOLE, SMALL):
        claim, _ = await prepared(rig, device)
        await unprepare(rig, claim)
    assert is_in_mig_mode(rig.node)


BOARDS = [
    pytest.param(("a30", MIG_MODE), id="a30"),
    pytest.param("rtx-pro-6000", id="rtx-pro-6000"),
    *(
        pytest.param(rig, id=name, marks=pytest.mark.soak)
        for name, rig in {
            "a100": ("dgx-a100", MIG_MODE),
            "h200": "hgx-h200",
            "b200": "b200",
            "gb200": "gb200-nvl72",
        }.items()
    ),
]


def kinds_of_partitions(rig: Rig) -> list[str]:
    """Of what can be made on one GPU: the smallest, the largest, and one of `+me` and `+gfx`."""
    first = min(name for name in rig.devices() if "-mig-" in name).partition("-mig-")[0]
    found = {
        name: Quantity.parse(device["capacity"]["memory"]["value"])
        for name, device in rig.devices().items()
        if name.startswith(f"{first}-mig-")
    }
    ends = [min(found, key=lambda name: found[name]), max(found, key=lambda name: found[name])]
    special = (next((name for name in found if mark in name), "") for mark in ("-me-", "-gfx-"))
    return [*dict.fromkeys(filter(None, (*ends, *special)))]


@pytest.mark.parametrize("rig", BOARDS, indirect=True)
async def test_on_every_board_what_is_published_can_be_made(rig: Rig) -> None:
    await rig.start(GATE)
    for device in kinds_of_partitions(rig):
        claim, answer = await prepared(rig, device)
        ((_, profile, start),) = gpu_instances(rig.node)
        assert device.endswith(f"-{start}")
        assert rig.devices()[device]["attributes"]["profile"]["string"] == profile
        nodes = [each["path"] for each in cdi_edits(rig, cdi_names(answer)[0])["deviceNodes"]]
        assert len([node for node in nodes if "nvidia-caps" in node]) == 2
        await unprepare(rig, claim)
        assert gpu_instances(rig.node) == []
    assert rig.recorded_claims() == {}
    assert own_specs(rig) == []


async def test_an_instance_of_an_administrator_is_left_alone_and_named(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 4, compute="")
    _, refused = await prepare(rig, LARGE)
    assert refused.error.startswith("UnknownDevice: ")
    assert "no claim has made" in refused.error
    _, refused = await prepare(rig, "gpu-0-mig-2g20gb-14-4")
    assert refused.error.startswith("UnknownDevice: ")
    claim, _ = await prepared(rig, SMALL)
    await unprepare(rig, claim)
    assert is_in_mig_mode(rig.node)
    _, refused = await prepare(rig, LARGE)
    assert "no claim has made" in refused.error, "it is still there"


THE_KUBELET_THEN = pytest.mark.parametrize("retries", ["prepare", "unprepare", "nothing"])


@pytest.mark.soak
@THE_KUBELET_THEN
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("function", IN_PREPARE)
async def test_a_plugin_that_is_killed_in_a_prepare_leaves_nothing_behind(
    rig: Rig, function: str, retries: str, moment: str
) -> None:
    await rig.start(GATE)
    await rig.wait_until(lambda: WHOLE in rig.devices(), "the GPU")
    after = ("--do-work",) if moment == "after" else ()
    rig.node.simctl("fault", "add", function, "--gpu", "0", "--abort", *after)
    claim = rig.create_claim(LARGE)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(broken(rig.dra.prepare([claim])))
        await killed(rig)
    assert call.result()
    await start_again(rig)
    if retries == "prepare":
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]
    if retries == "nothing":
        await rig.wait_until(lambda: not started_records(rig), "the roll-back")
    else:
        await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@THE_KUBELET_THEN
async def test_what_an_administrator_makes_while_the_plugin_is_down_is_left_alone(
    rig: Rig, retries: str
) -> None:
    await rig.start(GATE)
    await rig.wait_until(lambda: WHOLE in rig.devices(), "the GPU")
    rig.node.simctl("fault", "add", "nvmlDeviceCreateGpuInstance*", "--gpu", "0", "--abort")
    claim = rig.create_claim(LARGE)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(broken(rig.dra.prepare([claim])))
        await killed(rig)
    assert call.result()
    rig.node.make_mig_device(0, "3g.40gb", 4)
    await start_again(rig)
    if retries == "prepare":
        error = (await rig.dra.prepare([claim]))[claim.uid].error
        assert "no claim has made" in error, error
    if retries == "nothing":
        await rig.wait_until(lambda: not started_records(rig), "the roll-back")
    else:
        await unprepare(rig, claim)
    assert not rig.recorded_claims()
    assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]


@pytest.mark.soak
@THE_KUBELET_THEN
@pytest.mark.parametrize("function", IN_UNPREPARE)
async def test_a_plugin_that_is_killed_in_an_unprepare_leaves_nothing_behind(
    rig: Rig, function: str, retries: str
) -> None:
    await rig.start(GATE)
    claim, before = await prepared(rig, LARGE)
    rig.node.simctl("fault", "add", function, "--abort")
    async with asyncio.TaskGroup() as group:
        call = group.create_task(broken(rig.dra.unprepare([claim])))
        await killed(rig)
    assert call.result()
    await start_again(rig)
    if retries == "prepare":
        assert (await rig.dra.prepare([claim]))[claim.uid] == before
        assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]
    if retries == "nothing":
        await rig.wait_until(lambda: not started_records(rig), "the roll-back")
    else:
        await unprepare(rig, claim)
    assert_nothing_is_left(rig)


async def broken(call: Any) -> bool:
    """Whether a call ends without an answer."""
    try:
        await call
    except Exception:  # noqa: BLE001 - gRPC's, whichever
        return True
    return False


async def test_a_restarted_plugin_keeps_the_device_and_publishes_the_same(rig: Rig) -> None:
    await rig.start(GATE)
    claim, before = await prepared(rig, LARGE)
    published = rig.slices()
    rig.process.stop(signal.SIGKILL)
    await start_again(rig)
    assert rig.slices() == published
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert rig.node.nvml_calls(CREATE) == 1
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


async def test_after_a_reboot_the_device_is_there_again_without_a_call(rig: Rig) -> None:
    await rig.start(GATE)
    claim, before = await prepared(rig, LARGE, pod_uid="p")
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node)
    assert gpu_instances(rig.node) == []
    await start_again(rig)
    await rig.wait_until(lambda: gpu_instances(rig.node) == [(0, "3g.40gb", 4)], "the device")
    await rig.wait_until(lambda: spec_of(claim) in own_specs(rig), "the spec")
    assert cdi_edits(rig, cdi_names(before)[0])["deviceNodes"]
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


FRESH: dict[str, Any] = {"mig": {"uuid": "fresh"}}
"""NVML gives each MIG device that is made another UUID."""


def uuids_made(rig: Rig) -> list[str]:
    """The UUIDs of the MIG devices; a GPU instance alone is none yet."""
    return [each["uuid"] for each in json.loads(rig.node.simctl("mig", "list", "--json"))]


def uuid_made(rig: Rig) -> str:
    """The UUID of the one MIG device that there is."""
    (made,) = uuids_made(rig)
    return made


def uuid_in_status(rig: Rig, claim: ClaimRef) -> str:
    """The UUID of the one device of a claim, as its status has it; empty if it has none."""
    path = f"{plugin.claims_path(claim.namespace)}/{claim.name}"
    status = rig.server.request("GET", path)["status"]
    return "".join(each["data"]["uuid"] for each in status.get("devices") or ())


def uuid_in_record(rig: Rig) -> str:
    (record,) = rig.recorded_claims().values()
    (device,) = json.loads(record)["devices"]
    return str(device["uuid"])


async def renewed(rig: Rig, claim: ClaimRef, former: str) -> None:
    """Wait until the claim has a MIG device that is called otherwise, and says so everywhere."""
    await rig.wait_until(lambda: not {former}.issuperset(uuids_made(rig)), "the device")
    assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]
    await rig.wait_until(lambda: uuid_in_record(rig) == uuid_made(rig), "the record")
    await rig.wait_until(lambda: uuid_in_status(rig, claim) == uuid_made(rig), "the status")


@pytest.mark.parametrize("rig", [("dgx-h100", FRESH)], indirect=True)
async def test_after_a_reboot_with_another_uuid_the_claim_says_so(rig: Rig) -> None:
    await rig.start(GATE)
    other, _ = await prepared(rig, SMALL)  # after the reboot, the first device is another one
    await unprepare(rig, other)
    claim, before = await prepared(rig, LARGE, pod_uid="p")
    former = uuid_made(rig)
    await rig.wait_until(lambda: uuid_in_status(rig, claim) == former, "the status")
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node, mig=FRESH["mig"])
    await start_again(rig)
    await renewed(rig, claim, former)
    await rig.wait_until(lambda: spec_of(claim) in own_specs(rig), "the spec")
    assert cdi_edits(rig, cdi_names(before)[0])["deviceNodes"]
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert not rig.events("DeviceUnhealthy"), "a reboot is nobody's fault"
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


def told_kinds(rig: Rig, device: str) -> set[str]:
    """About which objects there are Events that say that the device was destroyed."""
    return {
        event["involvedObject"]["kind"]
        for event in rig.events("DeviceUnhealthy")
        if event["message"].startswith(f"{device}, made for a claim")
    }


@pytest.mark.parametrize("rig", [("dgx-h100", FRESH)], indirect=True)
async def test_a_device_that_somebody_destroys_is_made_again_and_its_pod_is_told(rig: Rig) -> None:
    await rig.start(GATE)
    published = rig.slices()
    claim, before = await prepared(rig, LARGE)
    former = uuid_made(rig)
    rig.node.destroy_mig_device(0, 2)
    await renewed(rig, claim, former)
    await rig.wait_until(
        lambda: told_kinds(rig, LARGE) == {"ResourceClaim", "Pod", "Node"}, "the Events"
    )
    (text,) = {event["message"] for event in rig.events("DeviceUnhealthy")}
    assert "it was destroyed (nvidia-smi mig, " in text
    assert "or the GPU was reset or its driver loaded again" in text, "nobody is blamed"
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    assert rig.slices() == published
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.soak
async def test_a_destroyed_device_whose_place_is_taken_is_made_again_when_it_is_free(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    claim, before = await prepared(rig, LARGE)
    rig.node.destroy_mig_device(0, 2)
    rig.node.make_mig_device(0, "2g.20gb", 4)
    await rig.wait_until(lambda: bool(rig.events("UnknownDevice")), "the Event of the Node")
    (event,) = rig.events("UnknownDevice")
    assert "which no claim has made" in event["message"]
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert answer.error.startswith("UnknownDevice: ")
    assert gpu_instances(rig.node) == [(0, "2g.20gb", 4)]
    (theirs,) = json.loads(rig.node.simctl("mig", "list", "--json"))
    rig.node.destroy_mig_device(0, theirs["gpu_instance"])
    await rig.wait_until(lambda: gpu_instances(rig.node) == [(0, "3g.40gb", 4)], "the device")
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)


@pytest.mark.soak
async def test_a_claim_of_an_earlier_boot_is_unprepared_and_touches_nothing_of_others(
    rig: Rig,
) -> None:
    await rig.start(GATE)
    claim, _ = await prepared(rig, LARGE, pod_uid="p")
    rig.process.stop(signal.SIGKILL)
    driver_installation.reboot(rig.node)
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    rig.node.make_mig_device(0, "3g.40gb", 4)
    await start_again(rig)
    error = (await rig.dra.prepare([claim]))[claim.uid].error
    assert error.startswith("UnknownDevice: ")
    await rig.wait_until(lambda: bool(rig.events("UnknownDevice")), "the Event of the Node")
    await unprepare(rig, claim)
    assert gpu_instances(rig.node) == [(0, "3g.40gb", 4)]
    assert rig.recorded_claims() == {}


@pytest.mark.soak
async def test_a_spec_that_was_removed_is_written_again(rig: Rig) -> None:
    await rig.start(GATE)
    await prepared(rig, LARGE)
    (path,) = rig.node.cdi.glob("*claim-device*")
    content = path.read_bytes()
    path.unlink()
    await rig.wait_until(path.exists, "the spec")
    assert path.read_bytes() == content


async def test_a_whole_gpu_is_taken_out_of_mig_mode_for_its_claim(rig: Rig) -> None:
    await rig.start(GATE)
    rig.node.nvidia_smi("-i", "0", "-mig", "1")
    claim, _ = await prepared(rig, WHOLE)
    assert not is_in_mig_mode(rig.node)
    (record,) = rig.recorded_claims().values()
    assert [step["step"] for step in json.loads(record)["steps"]] == ["disable-mig-mode"]
    await unprepare(rig, claim)
    claim, _ = await prepared(rig, WHOLE)
    (record,) = rig.recorded_claims().values()
    assert json.loads(record)["steps"] == []


@pytest.mark.soak
async def test_with_the_gate_off_held_devices_are_destroyed_with_their_claims(rig: Rig) -> None:
    await rig.start(GATE)
    claim, before = await prepared(rig, LARGE)
    await rig.stop()
    await start_again(rig, "--feature-gates=DynamicMIG=false")
    assert not [name for name in rig.devices() if name.startswith("gpu-0")]
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)
    await rig.wait_until(lambda: WHOLE in rig.devices(), "the whole GPU")


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(GATE,), (f"{GATE},NVMLDeviceHealthCheck=true",)])
async def test_devices_of_claims_are_no_change_of_the_node(
    rig: Rig, flags: tuple[str, ...]
) -> None:
    await rig.start(*flags)
    published, opened = rig.slices(), rig.node.nvml_calls("nvmlInitWithFlags")
    for _ in range(3):
        claim, _ = await prepared(rig, LARGE, SMALL)
        await asyncio.sleep(0.5)
        assert rig.slices() == published
        await unprepare(rig, claim)
    await asyncio.sleep(1)
    assert rig.slices() == published
    assert rig.node.nvml_calls("nvmlInitWithFlags") == opened


@pytest.mark.soak
async def test_a_record_that_was_lost_comes_back_with_what_was_made(rig: Rig) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    await rig.start(GATE)
    claim, before = await prepared(rig, LARGE)
    kubelet.add_claim(claim, before)
    await rig.stop()
    (rig.plugin_dir / "state.sqlite").unlink()
    await start_again(rig)
    await rig.wait_until(lambda: set(rig.recorded_claims()) == {claim.uid}, "the record")
    assert (await rig.dra.prepare([claim]))[claim.uid] == before
    await rig.wait_until(lambda: WHOLE in rig.devices(), "the whole GPU")
    assert (await prepare_shortly(rig, WHOLE)).startswith("DeviceInUse: ")
    assert rig.node.nvml_calls(CREATE) == 1
    await unprepare(rig, claim)
    assert_nothing_is_left(rig)
