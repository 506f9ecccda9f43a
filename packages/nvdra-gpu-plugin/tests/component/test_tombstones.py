# SPDX-License-Identifier: Apache-2.0
"""A claim is let go whatever its GPU does, and what is left of it goes before its place is offered.

Otherwise its pod is Terminating until the node is booted, and `kubectl drain` waits for it.
"""

import asyncio
import json

import pytest
from nvdra_testing.hardware.gpu_modes import time_slice
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

GATES = "--feature-gates=DynamicMIG=true,TimeSlicingSettings=true,NVMLDeviceHealthCheck=true"
LARGE = "gpu-0-mig-3g40gb-9-4"
UNNAMED_S = 11.0
"""A client that no list names is taken for a monitor after 10 s."""
ALL = ("nvmlDevice*", "nvmlGpuInstance*", "nvmlComputeInstance*")


def broken(rig: Rig, how: str) -> None:
    """Make GPU 0 lost, or let all its calls fail or hang."""
    if how == "lost":
        rig.node.simctl("gpu", "lose", "0")
    for function in ALL:
        if how == "hangs":
            rig.node.simctl("slow", "-1", "--function", function, "--gpu", "0")
        elif how != "lost":
            rig.node.simctl("fault", "add", function, "--gpu", "0", "--result", how)


def mended(rig: Rig, how: str) -> None:
    if how == "lost":
        rig.node.simctl("gpu", "restore", "0")
    else:
        rig.node.simctl("fault", "rm", "all")


def is_undone(rig: Rig) -> bool:
    made = json.loads(rig.node.simctl("mig", "list", "--json"))
    return not made and time_slice(rig.node, 0) == "Default"


@pytest.mark.parametrize("how", ["lost", "UNKNOWN", "RESET_REQUIRED", "hangs"])
@pytest.mark.parametrize("sharing", ["mig", "time slices"])
async def test_a_claim_of_a_gpu_that_is_broken_is_unprepared(
    rig: Rig, sharing: str, how: str
) -> None:
    await rig.start(GATES)
    if sharing == "mig":
        claim = rig.create_claim(LARGE)
    else:
        claim = rig.create_claim("gpu-0", config=plugin.shared_by_time("Long"))
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    broken(rig, how)
    assert not (await rig.dra.unprepare([claim], timeout_s=40))[claim.uid].error

    mended(rig, how)
    await rig.wait_until(lambda: is_undone(rig), "the rest to be undone")
    await rig.wait_until(lambda: "gpu-0" in rig.devices(), "the GPU to be offered")
    again = rig.create_claim("gpu-0")
    assert not (await rig.dra.prepare([again]))[again.uid].error


def gpu_instance(rig: Rig) -> str:
    (made,) = json.loads(rig.node.simctl("mig", "list", "--json", "--instances"))
    return str(made["gpu_instance"])


async def test_a_process_in_a_mig_device_keeps_it_and_is_named(rig: Rig) -> None:
    """The driver need not have each of the three lists of processes."""
    await rig.start(GATES)
    rig.node.simctl("fault", "add", "nvmlDeviceGetMPS*Processes*", "--result", "FUNCTION_NOT_FOUND")
    claim = rig.create_claim(LARGE)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    rig.node.simctl("proc", "add", "0", "4711", "--gi", gpu_instance(rig), "--ci", "0")
    for _ in range(2):
        error = (await rig.dra.unprepare([claim]))[claim.uid].error
        assert error.startswith("DeviceInUse: "), error
        assert "with PIDs 4711" in error
        await asyncio.sleep(UNNAMED_S)
    rig.node.simctl("proc", "rm", "0", "4711")
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert is_undone(rig)


@pytest.mark.parametrize("lists", ["empty", "NO_PERMISSION"])
async def test_a_client_that_no_list_names_keeps_the_place_and_not_the_claim(
    rig: Rig, lists: str
) -> None:
    await rig.start(GATES)
    claim = rig.create_claim(LARGE)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    rig.node.simctl("fault", "add", "nvmlGpuInstanceDestroy", "--result", "IN_USE")
    if lists != "empty":
        rig.node.simctl("fault", "add", "nvmlDeviceGet*RunningProcesses*", "--result", lists)
    error = (await rig.dra.unprepare([claim]))[claim.uid].error
    assert error.startswith("DeviceInUse: "), error
    assert "DCGM" in error
    await asyncio.sleep(UNNAMED_S)
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    whole = rig.create_claim("gpu-0")
    error = (await rig.dra.prepare([whole], timeout_s=5))[whole.uid].error
    assert "cannot be undone yet" in error, error
    mended(rig, "IN_USE")
    assert not (await rig.dra.prepare([whole]))[whole.uid].error


async def test_a_mode_that_cannot_be_left_now_does_not_change_with_a_later_reset(rig: Rig) -> None:
    await rig.start(GATES)
    claim = rig.create_claim(LARGE)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    rig.node.simctl(
        "fault", "add", "nvmlDeviceSetMigMode", "--activation-status", "IN_USE", "--times", "1"
    )
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    gpu = json.loads(rig.node.simctl("show", "--json"))["gpus"][0]
    assert (gpu["mig_mode"], gpu["mig_pending"]) == (True, True)
