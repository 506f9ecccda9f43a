# SPDX-License-Identifier: Apache-2.0
"""An administrator has the plugin give up NVML, works on the GPUs, and has it resume.

The simulator refuses what the real driver refuses while a process has a session or a handle.
"""

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

ALL = {f"gpu-{minor}" for minor in range(8)}
ANNOTATION = "gpu.nvidia.com/release-nvml"

SET_MODE = """
import ctypes, sys
library, index, function, mode = sys.argv[1:]
nvml = ctypes.CDLL(library)
gpu = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(int(index), ctypes.byref(gpu)) == 0
assert getattr(nvml, function)(gpu, int(mode)) == 0
"""


def open_files_of_the_driver(rig: Rig) -> list[str]:
    """What the plugin has open or mapped of the driver's devices and simulated hardware."""
    process = Path("/proc") / str(rig.process.process.pid)
    targets = []
    for each in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # it is closed meanwhile
            targets.append(str(each.readlink()))
    targets += [line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()]
    return [each for each in targets if "/dev/nvidia" in each or "gsp_nvdra_sim" in each]


def versions(rig: Rig) -> list[str]:
    return [each["metadata"]["resourceVersion"] for each in rig.slices()]


def annotate(rig: Rig, value: str | None) -> None:
    """As `kubectl annotate node`; None removes the annotation."""
    node = rig.server.request("GET", f"/api/v1/nodes/{rig.node.name}")
    annotations = node["metadata"].setdefault("annotations", {})
    annotations.pop(ANNOTATION, None)
    if value is not None:
        annotations[ANNOTATION] = value
    rig.server.request("PUT", f"/api/v1/nodes/{rig.node.name}", node)


def is_released(rig: Rig) -> bool:
    return "NVML is released since" in rig.process.get("/readyz?verbose")[1]


async def released(rig: Rig) -> None:
    await rig.wait_until(lambda: is_released(rig), "the release")


async def resumed(rig: Rig) -> None:
    await rig.wait_until(lambda: not is_released(rig), "the end of the release")


def of_node(rig: Rig, reason: str) -> list[dict[str, Any]]:
    return [each for each in rig.events(reason) if each["involvedObject"]["kind"] == "Node"]


def metric(rig: Rig) -> str:
    lines = rig.process.get("/metrics")[1].splitlines()
    (line,) = (each for each in lines if each.startswith("nvdra_nvml_released{"))
    return line.rpartition(" ")[2]


def registrations(rig: Rig) -> int:
    """How often GPUs were registered for events."""
    return rig.node.nvml_calls("nvmlDeviceRegisterEvents")


def refusal(rig: Rig, *command: str) -> str:
    """What the simulator says to a command that it refuses."""
    with pytest.raises(AssertionError) as refused:
        rig.node.simctl(*command)
    return str(refused.value)


def set_persistence(rig: Rig, index: int, mode: int) -> None:
    """As nvidia-smi -pm."""
    set_mode(rig, index, "nvmlDeviceSetPersistenceMode", mode)


def set_mode(rig: Rig, index: int, function: str, mode: int) -> None:
    """Call a function of NVML in a process of its own."""
    library = str(next(rig.node.roots.driver.rglob("libnvidia-ml.so.1")))
    command = [sys.executable, "-c", SET_MODE, library, str(index), function, str(mode)]
    subprocess.run(command, check=True)


async def test_a_released_plugin_has_nothing_of_the_driver_open_and_publishes_the_same(
    rig: Rig,
) -> None:
    await rig.start()
    before = versions(rig)
    assert open_files_of_the_driver(rig)
    assert metric(rig) == "0.0"
    assert "until" in rig.command("release", "--for=1h")
    assert not open_files_of_the_driver(rig)
    assert metric(rig) == "1.0"
    assert rig.process.get("/readyz")[0] == 200
    assert is_released(rig)
    assert "NVML is released since" in rig.status()
    rig.command("resume")
    assert open_files_of_the_driver(rig)
    assert metric(rig) == "0.0"
    assert not is_released(rig)
    assert set(rig.devices()) == ALL
    assert versions(rig) == before
    await rig.wait_until(lambda: bool(of_node(rig, "NvmlResumed")), "an Event of the Node")
    assert "ends with: nvdra-gpu-plugin resume" in of_node(rig, "NvmlReleased")[0]["message"]


@pytest.mark.soak
@pytest.mark.parametrize(("persistence", "is_blocked"), [(0, True), (1, True), (1, False)])
@pytest.mark.parametrize("gates", ["", "NVMLDeviceHealthCheck=true"])
async def test_what_the_driver_refuses_while_the_plugin_uses_nvml_is_done_after_a_release(
    rig: Rig, persistence: int, is_blocked: bool, gates: str
) -> None:
    """Persistence mode has a GPU open as well, or gives way to a reset: reports have both."""
    settings = {"persistence_blocks_reset": is_blocked}
    driver_installation.install_driver(rig.node, settings=settings)
    for index in (0, 1):
        set_persistence(rig, index, persistence)
    await rig.start(f"--feature-gates={gates}")
    expected = len(ALL) if gates else 0
    await rig.wait_until(lambda: registrations(rig) == expected, "the events to be registered")
    before = versions(rig)
    operations = [("gpu", "reset", "0"), ("gpu", "unbind", "1"), ("driver", "unload")]
    for operation in operations:
        said = refusal(rig, *operation)
        assert "in use" in said.lower() or "non-zero usage count" in said
    if persistence:
        assert "persistence mode" in refusal(rig, "gpu", "drain", "0")
    else:
        assert "In use by another client" in refusal(rig, "gpu", "drain", "0")
        operations.append(("gpu", "drain", "0"))
    said = rig.command("release")
    if persistence:
        assert "persistence mode has gpu-0, gpu-1 open: before a reset, turn it off" in said
        assert "nvidia-smi -pm 0" in said
    else:
        assert "persistence mode" not in said
    if persistence and is_blocked:
        assert "In use by another client" in refusal(rig, "gpu", "reset", "0")
        set_persistence(rig, 0, 0)
    for operation in operations:
        rig.node.simctl(*operation)
    for undo in [("driver", "load"), ("gpu", "bind", "1")]:
        rig.node.simctl(*undo)
    if not persistence:
        rig.node.simctl("gpu", "plug", "0")
    rig.command("resume")
    assert set(rig.devices()) == ALL
    assert versions(rig) == before
    await rig.wait_until(lambda: registrations(rig) == 2 * expected, "the events once more")
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error


@pytest.mark.soak
@pytest.mark.parametrize("rig", ["dgx-a100"], indirect=True)
async def test_a_mig_mode_that_waits_for_a_reset_takes_effect_during_a_release(rig: Rig) -> None:
    await rig.start()
    assert "pending enable state" in rig.node.nvidia_smi("-i", "3", "-mig", "1")
    assert "In use by another client" in refusal(rig, "gpu", "reset", "3")
    rig.command("release")
    rig.node.simctl("gpu", "reset", "3")
    assert set(rig.devices()) == ALL, "nothing is looked at before the end"
    rig.command("resume")
    claim = rig.create_claim("gpu-3")
    text = (await rig.dra.prepare([claim]))[claim.uid].error
    assert text.startswith("UnknownDevice: "), "the GPU was inspected before the first prepare"
    await rig.wait_until(lambda: set(rig.devices()) == ALL - {"gpu-3"}, "gpu-3 to go")


async def test_a_prepare_waits_while_nvml_is_released_and_goes_on_when_it_is_not(rig: Rig) -> None:
    await rig.start()
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-0")
    before = (await rig.dra.prepare([held]))[held.uid]
    rig.command("release", "--force")
    for claim in (held, new):
        text = await rig.dra.refusal(claim)
        assert text.startswith("NvmlReleased: ")
        assert "nvdra-gpu-plugin resume" in text
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.dra.prepare([held, new], timeout_s=40))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await asyncio.to_thread(rig.command, "resume")
    assert waiting.result()[held.uid] == before
    assert not waiting.result()[new.uid].error


async def test_unprepares_go_on_and_end_the_wait_of_their_own_claim(rig: Rig) -> None:
    await rig.start()
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    rig.command("release", "--force")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.dra.prepare([new], timeout_s=40))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        answers = await rig.dra.unprepare([held, new], timeout_s=20)
        assert not any(each.error for each in answers.values())
        assert time.monotonic() - began < 5
    assert waiting.result()[new.uid].error.startswith("NvmlReleased: ")
    assert not rig.recorded_claims()


async def test_gpus_that_claims_hold_are_named_and_nothing_is_released(rig: Rig) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1", "gpu-2")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    done = rig.run_command("release")
    assert done.returncode == 1
    assert f"gpu-1 by {held} of p; gpu-2 by {held} of p" in done.stderr
    assert "--force" in done.stderr
    assert not is_released(rig)
    new = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([new]))[new.uid].error
    rig.command("release", "--force")
    assert not open_files_of_the_driver(rig)


@pytest.mark.soak
async def test_the_settings_that_a_gpu_would_lose_are_named(rig: Rig) -> None:
    set_persistence(rig, 5, 0)
    await rig.start()
    set_mode(rig, 5, "nvmlDeviceSetComputeMode", 3)
    done = rig.run_command("release")
    assert done.returncode == 1
    assert "gpu-5: compute mode 3" in done.stderr
    assert "set them again afterwards" in done.stderr
    assert "-pm 1" not in done.stderr, "it would have the driver refuse a reset"
    assert not is_released(rig)
    set_persistence(rig, 5, 1)
    rig.command("release")
    assert not open_files_of_the_driver(rig)


async def test_an_annotation_releases_nvml_until_it_is_removed(rig: Rig) -> None:
    await rig.start()
    annotate(rig, "true")
    await released(rig)
    assert not open_files_of_the_driver(rig)
    assert f"{ANNOTATION}-" in rig.process.get("/readyz?verbose")[1]
    annotate(rig, None)
    await resumed(rig)
    claim = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.wait_until(lambda: bool(of_node(rig, "NvmlResumed")), "an Event")
    assert "the annotation was removed" in of_node(rig, "NvmlResumed")[0]["message"]


@pytest.mark.soak
async def test_an_annotation_waits_for_the_claims_that_hold_gpus(rig: Rig) -> None:
    """The Event of the Node names the GPUs, and no claim of a tenant."""
    await rig.start()
    held = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    annotate(rig, "15m")
    await rig.wait_until(lambda: bool(of_node(rig, "NvmlReleaseRefused")), "an Event")
    (event,) = of_node(rig, "NvmlReleaseRefused")
    assert "gpu-1" in event["message"]
    assert held.name not in event["message"]
    assert f"gpu-1 by {held}" in rig.process.log.read_text()
    assert not is_released(rig)
    await rig.dra.unprepare([held])
    await released(rig)


@pytest.mark.soak
async def test_an_annotation_with_force_releases_nvml_although_a_claim_holds_a_gpu(
    rig: Rig,
) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    annotate(rig, "15m,force")
    await released(rig)
    assert not open_files_of_the_driver(rig)


@pytest.mark.soak
async def test_a_release_ends_by_itself_and_its_annotation_is_not_heeded_again(rig: Rig) -> None:
    await rig.start()
    annotate(rig, "2s")
    await released(rig)
    await resumed(rig)
    await rig.wait_until(lambda: bool(of_node(rig, "NvmlResumed")), "an Event")
    assert "its time has passed" in of_node(rig, "NvmlResumed")[0]["message"]
    await rig.stop()
    await rig.start()
    await asyncio.sleep(1)
    assert not is_released(rig)
    annotate(rig, "30m")
    await released(rig)


async def test_an_annotation_that_is_not_valid_is_told_of(rig: Rig) -> None:
    await rig.start()
    annotate(rig, "soon")
    await rig.wait_until(lambda: bool(of_node(rig, "NvmlReleaseRefused")), "an Event")
    assert "such as 15m" in of_node(rig, "NvmlReleaseRefused")[0]["message"]
    assert not is_released(rig)
    assert "such as 15m" in rig.status()
    annotate(rig, None)
    await rig.wait_until(lambda: "such as 15m" not in rig.status(), "the end of the refusal")


async def test_the_status_says_why_an_annotation_is_not_carried_out(rig: Rig) -> None:
    """The plugin stays ready, and offers its GPUs. Pages that anybody reads name no claim."""
    await rig.start()
    held = rig.create_claim("gpu-1")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    annotate(rig, "15m")
    refused = "NVML is not released, because 1 prepared claim holds gpu-1"
    await rig.wait_until(lambda: refused in rig.status(), "the refusal")
    code, page = rig.process.get("/readyz?verbose")
    assert (code, refused in page, held.name in page) == (200, True, False)
    await rig.dra.unprepare([held])
    await released(rig)
    assert refused not in rig.status()


@pytest.mark.soak
async def test_a_successor_starts_released_and_writes_no_slice(rig: Rig) -> None:
    await rig.start()
    before = versions(rig)
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([held]))[held.uid].error
    rig.command("release", "--force")
    await rig.stop()
    rig.node.simctl("slow", "-1", "--function", "nvml*")
    await rig.start()
    assert is_released(rig)
    assert not open_files_of_the_driver(rig)
    assert (await rig.dra.refusal(new)).startswith("NvmlReleased: ")
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    assert versions(rig) == before
    rig.node.simctl("fault", "rm", "all")
    rig.command("resume")
    assert not (await rig.dra.prepare([new]))[new.uid].error
    assert versions(rig) == before


@pytest.mark.soak
async def test_a_release_that_nobody_ended_is_over_for_a_later_process(rig: Rig) -> None:
    await rig.start()
    rig.command("release", "--for=3s")
    await rig.stop()
    await asyncio.sleep(3)
    await rig.start()
    assert not is_released(rig)
    assert open_files_of_the_driver(rig)


@pytest.mark.soak
async def test_a_call_that_hangs_ends_the_process_and_its_successor_starts_released(
    rig: Rig,
) -> None:
    await rig.start()
    rig.node.simctl("slow", "-1", "--function", "nvmlDevice*", "--gpu", "2")
    claim = rig.create_claim("gpu-2")
    text = await rig.dra.refusal(claim)
    assert text.startswith("DeadlineExceeded: gpu-2")
    assert "this process ends" in rig.command("release")
    assert await asyncio.to_thread(rig.process.process.wait, 45) == 0
    assert "A call hangs in NVML" in rig.process.log.read_text()
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    await rig.start()
    assert is_released(rig)
    assert not open_files_of_the_driver(rig)
    rig.node.simctl("gpu", "reset", "2")
    rig.node.simctl("fault", "rm", "all")
    rig.command("resume")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error


@pytest.mark.soak
async def test_the_command_resume_ends_the_release_of_an_annotation(rig: Rig) -> None:
    await rig.start()
    annotate(rig, "true")
    await released(rig)
    assert "still has the annotation" in rig.command("resume")
    await asyncio.sleep(1)
    assert not is_released(rig)
    annotate(rig, None)
    await asyncio.sleep(1)
    annotate(rig, "true")
    await released(rig)
    assert rig.run_command("release", "--for=soon").returncode == 1


@pytest.mark.soak
async def test_a_driver_that_was_replaced_meanwhile_is_used_afterwards(rig: Rig) -> None:
    await rig.start()
    rig.command("release")
    driver_installation.remove_driver(rig.node)
    claim = rig.create_claim("gpu-0")
    assert (await rig.dra.refusal(claim)).startswith("NvmlReleased")
    assert set(rig.devices()) == ALL
    driver_installation.install_driver(rig.node, version="590.44.1")
    rig.command("resume")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    await rig.wait_until(
        lambda: (
            {each["attributes"]["driverVersion"]["version"] for each in rig.devices().values()}
            == {"590.44.1"}
        ),
        "the new version in the slices",
    )
