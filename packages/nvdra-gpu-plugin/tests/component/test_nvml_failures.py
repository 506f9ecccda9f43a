# SPDX-License-Identifier: Apache-2.0
"""GPUs that hang, are lost, come back, or lose their device nodes."""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names

HANG = ("slow", "-1", "--function", "nvmlDevice*", "--gpu")
ALL = {f"gpu-{minor}" for minor in range(8)}


async def offered(rig: Rig, devices: set[str], timeout_s: float = 30) -> None:
    await rig.wait_until(lambda: set(rig.devices()) == devices, f"{sorted(devices)}", timeout_s)


def on_the_node(rig: Rig, reason: str, text: str) -> bool:
    """Is there an Event of the Node that says so?"""
    return any(
        event["involvedObject"]["kind"] == "Node" and text in event["message"]
        for event in rig.events(reason)
    )


def counted(rig: Rig, state: str) -> float:
    """`nvdra_devices` of that state."""
    _, text = rig.process.get("/metrics")
    for line in text.splitlines():
        if line.startswith("nvdra_devices{") and f'state="{state}"' in line:
            return float(line.rsplit(" ", 1)[1])
    return -1


@asynccontextmanager
async def unplugged(rig: Rig, gpu: str) -> AsyncIterator[None]:
    """The board is not in the node within the block."""
    place = rig.devices()[f"gpu-{gpu}"]["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
    listed = rig.node.roots.proc / "driver/nvidia/gpus" / place
    elsewhere = rig.node.kubelet.parent / "unplugged"
    rig.node.simctl("gpu", "unplug", gpu)
    listed.rename(elsewhere)
    await offered(rig, ALL - {f"gpu-{gpu}"})
    yield
    rig.node.simctl("gpu", "plug", gpu)
    elsewhere.rename(listed)


async def test_a_board_that_hangs_from_the_start_keeps_only_its_own_claims_waiting(
    rig: Rig,
) -> None:
    rig.node.simctl(*HANG, "1")
    await rig.start()
    assert set(rig.devices()) == ALL - {"gpu-1"}
    stuck, fine, absent = (
        rig.create_claim("gpu-1"),
        rig.create_claim("gpu-0"),
        rig.create_claim("gpu-77"),
    )
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.dra.prepare([stuck], timeout_s=9))
        assert not (await rig.dra.prepare([fine]))[fine.uid].error
        text = (await rig.dra.prepare([absent]))[absent.uid].error
        assert text.startswith("UnknownDevice: ")
        assert not waiting.done()
    text = waiting.result()[stuck.uid].error
    assert text.startswith("DeadlineExceeded: gpu-1 has not answered NVML since ")
    await rig.wait_until(
        lambda: on_the_node(rig, "DeviceUnhealthy", "gpu-1 has not answered"), "an Event"
    )
    rig.node.simctl("fault", "rm", "all")
    await offered(rig, ALL)
    assert not (await rig.dra.prepare([stuck]))[stuck.uid].error


async def test_a_claim_that_waits_for_a_board_goes_on_as_soon_as_the_board_answers(
    rig: Rig,
) -> None:
    rig.node.simctl(*HANG, "1")
    await rig.start()
    claim = rig.create_claim("gpu-1")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.dra.prepare([claim]))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        rig.node.simctl("fault", "rm", "all")
    assert not waiting.result()[claim.uid].error


@pytest.mark.soak
async def test_a_held_claim_of_a_board_that_hangs_after_a_restart_is_answered_once_it_answers(
    rig: Rig,
) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    rig.node.simctl(*HANG, "1")
    await rig.start()
    text = await rig.dra.refusal(held)
    assert text.startswith("DeadlineExceeded: gpu-1 ")
    rig.node.simctl("fault", "rm", "all")
    assert (await rig.dra.prepare([held]))[held.uid] == before


async def test_a_board_that_falls_off_the_bus_is_withdrawn_and_offered_again_when_it_is_back(
    rig: Rig,
) -> None:
    await rig.start()
    held = rig.create_claim("gpu-3")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    assert counted(rig, "healthy") == 8
    rig.node.simctl("gpu", "lose", "3")
    await offered(rig, ALL - {"gpu-3"})
    await rig.wait_until(
        lambda: (counted(rig, "healthy"), counted(rig, "unhealthy")) == (7, 1), "the counts"
    )
    assert "nvdra_device_health_events_total{" in rig.process.get("/metrics")[1]
    await rig.wait_until(lambda: on_the_node(rig, "DeviceUnhealthy", "gpu-3 (GPU-"), "an Event")
    text = (await rig.dra.prepare([held]))[held.uid].error
    assert text.startswith("DeviceUnhealthy: gpu-3")
    rig.node.simctl("gpu", "restore", "3")
    await offered(rig, ALL)
    assert (await rig.dra.prepare([held]))[held.uid] == before


@pytest.mark.soak
async def test_a_board_that_is_unplugged_goes_and_one_that_is_plugged_in_comes(rig: Rig) -> None:
    await rig.start()
    held = rig.create_claim("gpu-0")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    async with unplugged(rig, "4"):
        claim = rig.create_claim("gpu-4")
        text = (await rig.dra.prepare([claim]))[claim.uid].error
        assert text.startswith("UnknownDevice: ")
    await offered(rig, ALL)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert (await rig.dra.prepare([held]))[held.uid] == before


@pytest.mark.soak
async def test_a_board_that_is_plugged_in_while_another_one_is_slow_is_found(rig: Rig) -> None:
    await rig.start()
    slow = rig.create_claim("gpu-2")
    async with asyncio.TaskGroup() as group, unplugged(rig, "4"):
        rig.node.simctl("slow", "4000", "--function", "nvmlDevice*", "--gpu", "2")
        call = group.create_task(rig.dra.prepare([slow]))
        await asyncio.sleep(0.5)  # its call of NVML lasts
    assert not call.result()[slow.uid].error
    rig.node.simctl("fault", "rm", "all")
    await offered(rig, ALL)


@pytest.mark.soak
async def test_gpus_stay_offered_while_nvml_takes_long_to_close(rig: Rig) -> None:
    await rig.start()
    async with unplugged(rig, "4"):
        rig.node.simctl("slow", "14000", "--function", "nvmlShutdown")
    claim = rig.create_claim("gpu-0")
    seen = set[str]()
    while set(rig.devices()) != ALL:
        seen |= ALL - set(rig.devices())
        await asyncio.sleep(0.2)
    assert seen == {"gpu-4"}
    assert not (await rig.dra.prepare([claim]))[claim.uid].error


async def test_what_a_claim_learns_of_a_board_is_published_at_once(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl("gpu", "lose", "5")
    claim = rig.create_claim("gpu-5")
    began = time.monotonic()
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: gpu-5")
    await offered(rig, ALL - {"gpu-5"})
    assert time.monotonic() - began < 8, "not only when the board was asked next"


async def test_a_board_that_stops_answering_is_withdrawn_until_it_answers(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl(*HANG, "2")
    claim = rig.create_claim("gpu-2")
    text = await rig.dra.refusal(claim)
    assert text.startswith("DeadlineExceeded: gpu-2")
    await offered(rig, ALL - {"gpu-2"}, timeout_s=40)
    await rig.wait_until(
        lambda: on_the_node(rig, "DeviceUnhealthy", "has not answered NVML"), "Event"
    )
    rig.node.simctl("fault", "rm", "all")
    await offered(rig, ALL)


async def test_a_claim_for_a_board_that_is_known_not_to_answer_is_refused_at_once(
    rig: Rig,
) -> None:
    await rig.start()
    rig.node.simctl(*HANG, "2")
    first, second = rig.create_claim("gpu-2"), rig.create_claim("gpu-2", admin=True)
    began = time.monotonic()
    text = (await rig.dra.prepare([first]))[first.uid].error
    assert text.startswith("DeadlineExceeded: gpu-2")
    assert time.monotonic() - began < 20, "no board that works needs 10 s"
    for claim in (first, second):
        began = time.monotonic()
        text = (await rig.dra.prepare([claim]))[claim.uid].error
        assert text.startswith("DeadlineExceeded: gpu-2")
        assert time.monotonic() - began < 6, "10 s are waited for a board that may answer"
    rig.node.simctl("fault", "rm", "all")
    await offered(rig, ALL)
    assert not (await rig.dra.prepare([first]))[first.uid].error


@pytest.mark.soak
async def test_a_claim_for_a_board_that_never_answered_is_refused_at_once_after_ten_seconds(
    rig: Rig,
) -> None:
    rig.node.simctl(*HANG, "1")
    await rig.start()
    await rig.wait_until(lambda: on_the_node(rig, "DeviceUnhealthy", "gpu-1 has not"), "an Event")
    claim, began = rig.create_claim("gpu-1"), time.monotonic()
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeadlineExceeded: gpu-1 has not answered NVML since ")
    assert time.monotonic() - began < 2


async def test_a_monitor_that_waits_for_a_board_that_hangs_stops_no_other_claim(
    rig: Rig,
) -> None:
    await rig.start()
    rig.node.simctl(*HANG, "1")
    monitor, fine = rig.create_claim(*sorted(ALL), admin=True), rig.create_claim("gpu-0")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.dra.prepare([monitor], timeout_s=15))
        await rig.wait_until(lambda: bool(rig.spans(monitor, "resolve config")), "it to be at work")
        assert not (await rig.dra.prepare([fine]))[fine.uid].error
        assert not (await rig.dra.unprepare([fine]))[fine.uid].error
        assert not waiting.done()
    assert waiting.result()[monitor.uid].error.startswith("DeadlineExceeded: gpu-1 ")


async def test_the_boards_of_a_claim_are_asked_side_by_side(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl("slow", "2000", "--function", "nvmlDeviceGetMemoryInfo")
    claim, began = rig.create_claim(*sorted(ALL)), time.monotonic()
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    assert 2 <= time.monotonic() - began < 12, "eight boards one after the other need 16 s"


@pytest.mark.soak
async def test_a_board_of_a_claim_that_is_lost_is_told_although_another_hangs(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl(*HANG, "1")
    rig.node.simctl("gpu", "lose", "2")
    claim, began = rig.create_claim("gpu-1", "gpu-2"), time.monotonic()
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceUnhealthy: gpu-2")
    assert time.monotonic() - began < 4


@pytest.mark.soak
async def test_eight_boards_that_hang_do_not_keep_the_plugin_from_ending_in_time(
    rig: Rig,
) -> None:
    """A pod has 60 s; calls under way are waited for 20 s, the threads of all boards 5 s."""
    await rig.start()
    rig.node.simctl("slow", "-1", "--function", "nvmlDevice*")
    claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(rig.dra.prepare([each], timeout_s=14)) for each in claims]
        await rig.wait_until(lambda: "gpu-7" in _waiting(rig), "the calls to have begun")
        began = time.monotonic()
        assert await asyncio.to_thread(rig.process.stop) == 0
        assert time.monotonic() - began < 45
    for claim, call in zip(claims, calls, strict=True):
        assert call.result()[claim.uid].error.startswith("DeadlineExceeded: ")
    assert not rig.recorded_claims()


@pytest.mark.soak
async def test_nvml_that_hangs_when_it_is_opened_is_told_of_and_waited_for(rig: Rig) -> None:
    rig.node.simctl("slow", "-1", "--function", "nvmlInit*")
    rig.process = rig.launch()
    await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await rig.wait_until(
        lambda: "opening it takes longer" in rig.process.get("/readyz?verbose")[1],
        "the reason in /readyz",
        timeout_s=30,
    )
    await rig.wait_until(
        lambda: on_the_node(rig, "DeadlineExceeded", "NVML does not answer"), "Event"
    )
    rig.node.simctl("fault", "rm", "all")
    await offered(rig, ALL)


async def test_a_device_node_that_vanishes_withdraws_its_gpu_until_it_is_back(rig: Rig) -> None:
    await rig.start()
    node = rig.node.roots.dev / "nvidia1"
    before, claim = _spec(rig), rig.create_claim("gpu-1")
    numbers = node.stat().st_rdev
    node.unlink()
    await offered(rig, ALL - {"gpu-1"})
    await rig.wait_until(lambda: on_the_node(rig, "DeviceNodeMissing", "nvidia1"), "an Event")
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceNodeMissing: gpu-1")
    os.mknod(node, stat.S_IFCHR | 0o666, numbers)
    await offered(rig, ALL)
    assert _spec(rig) == before, "no claim has to change its generation for that"
    answer = (await rig.dra.prepare([claim]))[claim.uid]
    assert cdi_names(answer)[0].rpartition("=")[2] in before


@pytest.mark.soak
async def test_a_device_node_that_became_another_device_is_handed_to_nobody(rig: Rig) -> None:
    await rig.start()
    node = rig.node.roots.dev / "nvidia1"
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # what /dev/null is
    await offered(rig, ALL - {"gpu-1"})
    claim = rig.create_claim("gpu-1")
    assert (await rig.dra.prepare([claim]))[claim.uid].error.startswith("DeviceNodeMissing: gpu-1")
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    await rig.start()
    assert set(rig.devices()) == ALL - {"gpu-1"}, "a fresh look takes it for no GPU either"
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("DeviceNodeMissing: ")
    assert "which is not of the NVIDIA driver" in text


@pytest.mark.soak
async def test_a_file_of_the_driver_that_vanishes_withdraws_all_gpus_until_it_is_back(
    rig: Rig,
) -> None:
    """One that every container with a GPU gets; claims that are held wait for it, too."""
    await rig.start()
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-2")
    before, answer = _spec(rig), (await rig.dra.prepare([held]))[held.uid]
    assert not answer.error
    (library,) = rig.node.roots.driver.rglob("libcuda.so.*.*")
    elsewhere = rig.node.kubelet.parent / library.name
    library.rename(elsewhere)
    await offered(rig, set())
    await rig.wait_until(lambda: on_the_node(rig, "DeviceNodeMissing", library.name), "an Event")
    for claim in (held, new):
        text = (await rig.dra.prepare([claim]))[claim.uid].error
        assert text.startswith("DeviceNodeMissing: ")
        assert library.name in text
    elsewhere.rename(library)
    await offered(rig, ALL)
    assert _spec(rig) == before, "no claim has to change its generation for that"
    assert (await rig.dra.prepare([held]))[held.uid] == answer
    assert not (await rig.dra.prepare([new]))[new.uid].error


def _spec(rig: Rig) -> str:
    (spec,) = rig.node.cdi.glob("*.yaml")
    return spec.read_text()


def _waiting(rig: Rig) -> str:
    _, text = rig.process.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith("nvdra_operations_in_flight")]
    return "gpu-7" if any(line.endswith(" 8.0") for line in lines) else ""
