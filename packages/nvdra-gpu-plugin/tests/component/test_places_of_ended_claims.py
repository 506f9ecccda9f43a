# SPDX-License-Identifier: Apache-2.0
"""What an ended claim has left on a GPU is undone before its place is offered again.

Until then the scheduler gives pods other places, instead of one that they would have to wait for.
"""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvdra_testing.hardware.gpu_modes import time_slice
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

GATES = "--feature-gates=DynamicMIG=true,TimeSlicingSettings=true"
LARGE = "gpu-0-mig-3g40gb-9-4"
UNNAMED_S = 11.0
"""A client that no list names is taken for a monitor after 10 s."""


def taking(devices: dict[str, Any], first: int, number: int) -> set[str]:
    """The published devices of GPU 0 that take one of these memory slices."""
    slices = {f"memory-slice-{each}" for each in range(first, first + number)}
    return {
        name
        for name, device in devices.items()
        for consumed in device.get("consumesCounters", ())
        if consumed["counterSet"] == "gpu-0-counter-set" and slices & consumed["counters"].keys()
    }


def counters(rig: Rig) -> dict[str, str]:
    """What GPU 0 has to share."""
    (found,) = (
        each["counters"]
        for slice_ in rig.slices()
        for each in slice_["spec"].get("sharedCounters", ())
        if each["name"] == "gpu-0-counter-set"
    )
    return {name: counter["value"] for name, counter in found.items()}


@pytest.mark.parametrize("function", ["nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"])
async def test_a_mig_device_that_cannot_be_destroyed_takes_its_place_from_the_offer(
    rig: Rig, function: str
) -> None:
    await rig.start(GATES)
    everything, all_counters = rig.devices(), counters(rig)
    claim = rig.create_claim(LARGE)
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    prepared_at = datetime.now(UTC)
    rig.node.simctl("fault", "add", function, "--result", "IN_USE")
    assert (await rig.dra.unprepare([claim]))[claim.uid].error.startswith("DeviceInUse: ")
    assert rig.devices() == everything, "the claim has not ended yet, so that it holds its device"
    await asyncio.sleep(UNNAMED_S)
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error

    held = taking(everything, 4, 4)
    assert {"gpu-0", LARGE, "gpu-0-mig-1g10gb-19-6"} <= held
    await rig.wait_until(lambda: not held & rig.devices().keys(), "the place to be withdrawn")
    offered = rig.devices()
    assert "gpu-0-mig-1g10gb-19-0" in offered, "the rest of the GPU is offered"
    assert {name for name in everything if not name.startswith("gpu-0-")} - offered.keys() == {
        "gpu-0"
    }
    assert counters(rig)["memory-slice-4"] == "0"
    small = rig.create_claim("gpu-0-mig-1g10gb-19-0")
    assert not (await rig.dra.prepare([small]))[small.uid].error

    waiting = rig.create_claim("gpu-0-mig-1g10gb-19-6")  # allocated a moment before
    error = (await rig.dra.prepare([waiting], timeout_s=5))[waiting.uid].error
    assert "cannot be undone yet, since " in error, error
    assert "DCGM" in error, error
    assert "reset the GPU" not in error, error
    since = re.search(r"yet, since ([-0-9T:]+Z)", error)
    assert since is not None, error
    ended = datetime.fromisoformat(since[1]) - prepared_at
    assert ended > timedelta(seconds=UNNAMED_S - 1), "since it has ended, not since it was prepared"

    await rig.stop()
    await rig.start(GATES)
    assert not held & rig.devices().keys(), "a restart does not offer it"
    assert counters(rig)["memory-slice-4"] == "0"
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: rig.devices() == everything, "the place to be offered again")
    assert counters(rig) == all_counters
    assert not (await rig.dra.prepare([waiting]))[waiting.uid].error


async def test_a_gpu_whose_time_slice_cannot_be_restored_is_not_offered(rig: Rig) -> None:
    await rig.start(GATES)
    everything = rig.devices()
    claim = rig.create_claim("gpu-0", config=plugin.shared_by_time("Long"))
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
    for function in ("nvmlDevice*", "nvmlGpuInstance*"):
        rig.node.simctl("fault", "add", function, "--gpu", "0", "--result", "UNKNOWN")
    assert not (await rig.dra.unprepare([claim], timeout_s=40))[claim.uid].error
    await rig.wait_until(
        lambda: not any(name.split("-mig")[0] == "gpu-0" for name in rig.devices()),
        "the GPU to be withdrawn",
    )
    assert len(rig.devices()) == len(everything) * 7 // 8
    rig.node.simctl("fault", "rm", "all")
    await rig.wait_until(lambda: rig.devices() == everything, "the GPU to be offered again")
    assert time_slice(rig.node, 0) == "Default"
    assert json.loads(rig.node.simctl("mig", "list", "--json")) == []


async def test_claims_that_leave_nothing_write_no_slice(rig: Rig) -> None:
    await rig.start(GATES)
    before = [each["metadata"]["resourceVersion"] for each in rig.slices()]
    for device, config in ((LARGE, None), ("gpu-1", plugin.shared_by_time("Long"))):
        claim = rig.create_claim(device, **({} if config is None else {"config": config}))
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    await asyncio.sleep(2)
    assert [each["metadata"]["resourceVersion"] for each in rig.slices()] == before
