# SPDX-License-Identifier: Apache-2.0
"""GPUs report what is wrong with them, and the plugin listens (gate NVMLDeviceHealthCheck)."""

import asyncio

import pytest
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node.rig import Rig

GATE = "--feature-gates=NVMLDeviceHealthCheck=true"
ALL = {f"gpu-{minor}" for minor in range(8)}


async def started(rig: Rig, *flags: str) -> None:
    """Start the plugin, and wait until every GPU is registered for events."""
    await rig.start(GATE, *flags)
    await registered(rig, len(ALL))


async def registered(rig: Rig, count: int) -> None:
    await rig.wait_until(
        lambda: rig.node.nvml_calls("nvmlDeviceRegisterEvents") == count, "the registrations"
    )


async def waits_now_and_then(rig: Rig) -> None:
    """Fail if waits for events follow each other at once, or if there are none."""
    before = rig.node.nvml_calls("nvmlEventSetWait_v2")
    await asyncio.sleep(2)
    assert rig.node.nvml_calls("nvmlEventSetWait_v2") - before <= 20
    await rig.wait_until(lambda: rig.node.nvml_calls("nvmlEventSetWait_v2") > before, "a wait")


async def test_without_the_gate_no_event_set_is_made(rig: Rig) -> None:
    await rig.start()
    rig.node.simctl("xid", "3", "48")
    await asyncio.sleep(1)
    assert rig.node.nvml_calls("nvmlEventSetCreate") == 0
    assert rig.node.nvml_calls("nvmlDeviceGetFieldValues") == 0


async def test_events_are_registered_in_one_set_and_waiting_costs_little(rig: Rig) -> None:
    await started(rig)
    assert rig.node.nvml_calls("nvmlEventSetCreate") == 1
    await waits_now_and_then(rig)


async def test_a_lost_gpu_makes_no_wait_spin_and_the_others_are_still_listened_to(rig: Rig) -> None:
    """The simulated driver answers every wait on a set with a lost GPU at once, with an error."""
    await started(rig)
    rig.node.simctl("gpu", "lose", "2")
    await rig.wait_until(lambda: rig.node.nvml_calls("nvmlEventSetFree") >= 1, "a set without it")
    await asyncio.sleep(1)
    await waits_now_and_then(rig)
    rig.node.simctl("xid", "5", "48")
    await rig.wait_until(lambda: "xid=48" in rig.process.log.read_text(), "the XID of another GPU")


async def test_a_release_does_not_wait_for_events(rig: Rig) -> None:
    await started(rig)
    rig.command("release")
    assert rig.node.nvml_calls("nvmlEventSetFree") == 1
    assert rig.node.nvml_calls("nvmlShutdown") == 1


async def test_the_gpus_of_a_replaced_driver_are_listened_to(rig: Rig) -> None:
    await started(rig)
    driver_installation.remove_driver(rig.node)
    driver_installation.install_driver(rig.node, version="590.44.1")
    await registered(rig, len(ALL))
    rig.node.simctl("xid", "5", "48")
    await rig.wait_until(lambda: "xid=48" in rig.process.log.read_text(), "the XID")


@pytest.mark.parametrize("call", ["nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"])
async def test_a_gpu_that_cannot_be_registered_keeps_no_other_from_it(rig: Rig, call: str) -> None:
    rig.node.simctl("fault", "add", call, "--result", "unknown", "--gpu", "4")
    await rig.start(GATE)
    await rig.wait_until(lambda: rig.node.nvml_calls("nvmlEventSetWait_v2") > 0, "a wait")
    for gpu in ("4", "5"):
        rig.node.simctl("xid", gpu, "48")
    await rig.wait_until(lambda: "xid=48" in rig.process.log.read_text(), "the XID")
    claim = rig.create_claim("gpu-4")
    assert not (await rig.dra.prepare([claim]))[claim.uid].error
