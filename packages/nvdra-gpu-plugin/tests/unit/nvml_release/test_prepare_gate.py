# SPDX-License-Identifier: Apache-2.0
"""No prepare uses a GPU after the gate has closed, and a release waits for those inside."""

import asyncio

import pytest
from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_gpu_plugin.nvml_release.prepare_gate import PrepareGate
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue

CLAIM = ClaimRef("ml", "train", ClaimUID("uid-1"))
RELEASED = RetryableError(Reason.NVML_RELEASED, "NVML is released")


async def _never(_: ClaimUID) -> None:
    await asyncio.Event().wait()


def soon() -> float:
    return asyncio.get_running_loop().time() + 0.05


@pytest.fixture
def waits() -> DeviceWaitQueue:
    return DeviceWaitQueue(_never)


async def test_a_closed_gate_lets_nobody_in_and_waits_for_those_inside(
    waits: DeviceWaitQueue,
) -> None:
    gate = PrepareGate(waits)
    with gate.passed() as first:
        assert first
        gate.close(RELEASED)
        with gate.passed() as second:
            assert not second
        assert not await gate.wait_empty(0.01)
    assert await gate.wait_empty(0.01)


async def test_whoever_waits_goes_on_when_the_gate_opens(waits: DeviceWaitQueue) -> None:
    gate = PrepareGate(waits)
    gate.close(RELEASED)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(gate.wait_open(CLAIM, soon() + 4))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.open()
    with gate.passed() as may_use_gpus:
        assert may_use_gpus


async def test_at_the_deadline_the_newest_reason_is_raised(waits: DeviceWaitQueue) -> None:
    gate = PrepareGate(waits)
    gate.close(RetryableError(Reason.NVML_RELEASED, "being released"))
    asyncio.get_running_loop().call_soon(gate.close, RELEASED)
    with pytest.raises(DriverError) as raised:
        await gate.wait_open(CLAIM, soon())
    assert raised.value is RELEASED


async def test_the_wait_of_a_claim_ends_when_it_is_to_be_unprepared(
    waits: DeviceWaitQueue,
) -> None:
    gate = PrepareGate(waits)
    gate.close(RELEASED)
    asyncio.get_running_loop().call_soon(waits.cancel, CLAIM.uid)
    with pytest.raises(RetryableError):
        async with asyncio.timeout(5):
            await gate.wait_open(CLAIM, soon() + 30)
