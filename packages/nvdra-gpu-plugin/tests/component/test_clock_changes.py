# SPDX-License-Identifier: Apache-2.0
"""The node's clock is set forwards and backwards."""

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.faults import wall_clock
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

HOUR = 3600


async def answer(rig: Rig, claim: ClaimRef, **how: Any) -> Any:
    return (await rig.dra.prepare([claim], **how))[claim.uid]


@pytest.mark.parametrize("hours", [20, -20])
async def test_claims_waits_and_records_do_not_care(rig: Rig, hours: int) -> None:
    clock = wall_clock.compile_clock(rig.node.kubelet.parent)
    await rig.start("--logging-format=json", environ=clock.environ)
    held, next_, late = (
        rig.create_claim("gpu-0"),
        rig.create_claim("gpu-0"),
        rig.create_claim("gpu-0"),
    )
    before = await answer(rig, held)
    assert not before.error
    async with asyncio.TaskGroup() as group:
        began = asyncio.get_running_loop().time()
        waiting = group.create_task(answer(rig, next_, timeout_s=6))
        refused = group.create_task(answer(rig, late, timeout_s=5))
        await rig.wait_until(lambda: bool(rig.spans(late, "resolve config")), "both to wait")
        clock.jump(hours * HOUR)
        assert await answer(rig, held) == before
        assert not (await answer(rig, rig.create_claim("gpu-1"))).error
        await refused
        # 3 s of 5 are for waiting: no more and no less, whatever the clock says.
        assert 2 <= asyncio.get_running_loop().time() - began < 5
        assert not (await rig.dra.unprepare([held]))[held.uid].error
    assert not waiting.result().error
    assert refused.result().error.startswith("DeviceInUse: ")
    assert _hours_told(rig) > 19
    # Spans have the length that they had.
    (wait,) = rig.spans(next_, "wait device")
    assert 0 <= wait["duration_ms"] < 10_000
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    # And back; not to where the API server's certificate is not valid yet.
    clock.jump(max(0, -hours) * HOUR)
    await rig.start(environ=clock.environ)
    assert not (await answer(rig, next_)).error
    assert not (await rig.dra.unprepare([next_]))[next_.uid].error
    assert next_.uid not in rig.recorded_claims()


def _hours_told(rig: Rig) -> float:
    """How far apart the times in the log are: whether the clock did jump for the plugin."""
    times = [json.loads(line)["time"] for line in rig.process.log.read_text().splitlines()]
    told = [datetime.fromisoformat(time) for time in times]
    return (max(told) - min(told)).total_seconds() / HOUR
