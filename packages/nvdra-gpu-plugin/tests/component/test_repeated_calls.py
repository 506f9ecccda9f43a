# SPDX-License-Identifier: Apache-2.0
"""Calls that the kubelet repeats or abandons: after a reboot, after its deadline."""

import asyncio
import signal

import pytest
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.node.rig import Rig, cdi_names

SLOW_MS = 700
"""What an NVML call on one GPU takes, where a prepare is to outlive its caller."""

SHORT_S = 0.3


@pytest.mark.protocol("P31")
async def test_after_a_reboot_a_claim_has_the_same_devices_and_a_spec_again(rig: Rig) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-1", "gpu-4")
    before = (await rig.dra.prepare([claim]))[claim.uid]
    rig.process.stop(signal.SIGKILL)
    for spec in rig.node.cdi.iterdir():
        spec.unlink()
    rig.node.simctl("reboot", f"--proc-root={rig.node.roots.proc}")
    await rig.kubelet.restart()
    await rig.start()
    again = (await rig.dra.prepare([claim]))[claim.uid]
    assert [device.device_name for device in again.devices] == ["gpu-1", "gpu-4"]
    assert [device.request_names for device in again.devices] == [
        device.request_names for device in before.devices
    ]
    specs = "".join(path.read_text() for path in rig.node.cdi.glob("*.yaml"))
    for name in cdi_names(again):
        assert name.partition("=")[2] in specs


@pytest.mark.protocol("P32")
async def test_a_claim_that_is_taken_back_while_it_is_prepared_holds_nothing(rig: Rig) -> None:
    await rig.start()
    claim, next_one = rig.create_claim("gpu-2"), rig.create_claim("gpu-2")
    rig.node.simctl("slow", str(SLOW_MS), "--gpu", "2")
    await give_up(rig, claim)
    assert not (await rig.dra.unprepare([claim]))[claim.uid].error
    assert rig.recorded_claims() == {}
    rig.node.simctl("fault", "rm", "all")
    assert not (await rig.dra.prepare([next_one]))[next_one.uid].error
    assert set(rig.recorded_claims()) == {next_one.uid}


@pytest.mark.protocol("P33")
async def test_a_prepare_that_outlives_its_caller_answers_those_that_ask_meanwhile(
    rig: Rig,
) -> None:
    await rig.start()
    claim = rig.create_claim("gpu-5")
    rig.node.simctl("slow", str(SLOW_MS), "--gpu", "5")
    await give_up(rig, claim)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(rig.dra.prepare([claim])) for _ in range(2)]
    first, second = (call.result()[claim.uid] for call in calls)
    assert not first.error
    assert first == second
    assert set(rig.recorded_claims()) == {claim.uid}


async def give_up(rig: Rig, claim: ClaimRef) -> None:
    """A prepare whose caller is gone before it is done; the plugin believed in all of 45 s."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S):
            await rig.dra.prepare([claim])
    assert rig.recorded_claims() == {}
