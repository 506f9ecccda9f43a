# SPDX-License-Identifier: Apache-2.0
"""GPUs without persistence mode: the first client after the last one waits until they have started.

The plugin is the only client here, so each of its starts finds the boards cold.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

ALL = {f"gpu-{minor}" for minor in range(8)}
COLD_MS, STRAGGLER_MS, NEVER_MS = "2500", "6000", "60000"


@dataclass
class Watched:
    """What has been published, from the start of the watch to its end."""

    offers: list[set[str]] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)


@asynccontextmanager
async def watched(rig: Rig) -> AsyncIterator[Watched]:
    """Look at the node's slices all the time while the block runs."""
    seen = Watched()

    async def look() -> None:
        while True:
            slices = await asyncio.to_thread(rig.slices)
            devices = (each["spec"].get("devices") or [] for each in slices)
            seen.offers.append({device["name"] for part in devices for device in part})
            seen.versions |= {each["metadata"]["resourceVersion"] for each in slices}
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(look())
        yield seen
        task.cancel()


def cool(rig: Rig, milliseconds: str, *boards: int) -> None:
    """From now on these boards take so long to answer their first client."""
    for board in boards:
        rig.node.simctl("gpu", "initialisation", str(board), milliseconds)


async def stopped(rig: Rig) -> None:
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)


async def all_usable(rig: Rig) -> None:
    """Every board can be had, as soon as it has started."""
    claims = [rig.create_claim(name) for name in sorted(ALL)]
    answers = await rig.dra.prepare(claims)
    assert not [each.error for each in answers.values() if each.error]


async def test_boards_that_start_slowly_stay_offered_while_the_plugin_starts(rig: Rig) -> None:
    """One of them starts after all the others have been described."""
    await rig.start()
    held = rig.create_claim("gpu-5")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert set(rig.devices()) == ALL
    await stopped(rig)
    cool(rig, COLD_MS, *range(8))
    cool(rig, STRAGGLER_MS, 3)
    async with watched(rig) as seen:
        await rig.start()
        assert (await rig.dra.prepare([held]))[held.uid] == before
        straggler = rig.create_claim("gpu-3")
        assert not (await rig.dra.prepare([straggler]))[straggler.uid].error
        await asyncio.sleep(1)
    assert len(seen.offers) > 10
    assert all(offer == ALL for offer in seen.offers)
    assert len(seen.versions) == 1, "nothing had to be written"
    assert not rig.events("DeviceUnhealthy")


async def test_a_first_start_waits_for_boards_that_start_slowly(rig: Rig) -> None:
    cool(rig, COLD_MS, *range(8))
    rig.process = rig.launch()
    rig.dra = await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
    await all_usable(rig)
    await rig.wait_until(lambda: set(rig.devices()) == ALL, "all boards to be offered")
    assert not rig.events("DeviceUnhealthy")
    assert not rig.events("NoGPU")


async def test_a_board_that_does_not_start_is_withdrawn_after_ten_seconds(rig: Rig) -> None:
    await rig.start()
    await stopped(rig)
    cool(rig, NEVER_MS, 3)
    began = time.monotonic()
    await rig.start()
    fine = rig.create_claim("gpu-2")
    assert not (await rig.dra.prepare([fine]))[fine.uid].error
    assert set(rig.devices()) == ALL, "it may still be starting"
    await rig.wait_until(lambda: set(rig.devices()) == ALL - {"gpu-3"}, "gpu-3 to go")
    assert time.monotonic() - began > 9
    await rig.wait_until(lambda: bool(rig.events("DeviceUnhealthy")), "an Event")
    (event,) = rig.events("DeviceUnhealthy")
    assert "gpu-3 has not answered NVML since" in event["message"]


async def test_a_board_that_has_gone_while_the_plugin_was_away_is_not_waited_for(rig: Rig) -> None:
    await rig.start()
    place = rig.devices()["gpu-4"]["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
    await stopped(rig)
    rig.node.simctl("gpu", "unplug", "4")
    listed = rig.node.roots.proc / "driver/nvidia/gpus" / place
    listed.rename(rig.node.kubelet.parent / "unplugged")
    cool(rig, NEVER_MS, 3)
    await rig.start()
    await rig.wait_until(lambda: "gpu-4" not in rig.devices(), "gpu-4 to go", 5)
    assert set(rig.devices()) == ALL - {"gpu-4"}
