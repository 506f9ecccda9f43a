"""Claims that wait until the node's clique is known."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, CliqueID
from nvdra_api.resource.claims import ClaimRef
from nvdra_cd_plugin.fabric.monitor import FabricMonitor, FabricStatus
from nvdra_cd_plugin.fabric.nvml_query import FabricPolicy, FabricQuery
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.worker import Worker

REF = ClaimRef("team-a", "w-channel", ClaimUID("c-1"))
NO_DRIVER = RetryableError(Reason.DRIVER_MISMATCH, "there is no driver", "install it")
ON_ITS_WAY = RetryableError(Reason.FABRIC_ERROR, "GPUs have not joined", "wait")


async def released(uid: ClaimUID) -> None:
    raise AssertionError(uid)


@pytest_asyncio.fixture
async def watch(tmp_path: Path) -> AsyncIterator[FabricMonitor]:
    host = Host(proc=tmp_path, sys=tmp_path, dev=tmp_path, driver_root=tmp_path)
    rules = FabricPolicy(is_strict=True, tolerates_unfinished=False, requires_dns_names=True)
    async with Worker("nvml") as worker:
        yield FabricMonitor(FabricQuery(host, rules, lambda *_: None), worker)


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_wait_ends_with_the_latest_problem(watch: FabricMonitor, is_given_up: bool) -> None:
    turns = DeviceWaitQueue(released)
    watch.status = FabricStatus(problem=NO_DRIVER)

    async def look_again() -> None:
        watch.status = FabricStatus(problem=ON_ITS_WAY)
        if is_given_up:
            turns.cancel(REF.uid)

    async with asyncio.TaskGroup() as group:
        group.create_task(look_again())
        with pytest.raises(DriverError) as raised:
            await watch.wait_clique_for_claim(REF, turns, soon(5.0 if is_given_up else 0.05))
    assert raised.value is ON_ITS_WAY


async def test_the_error_says_if_nvml_has_not_answered(watch: FabricMonitor) -> None:
    with pytest.raises(DriverError) as raised:
        await watch.wait_clique_for_claim(REF, DeviceWaitQueue(released), soon(0.05))
    assert raised.value.reason is Reason.DEADLINE_EXCEEDED


async def test_a_known_clique_is_returned_at_once(watch: FabricMonitor) -> None:
    watch.status = FabricStatus(CliqueID("c.1"), ON_ITS_WAY)
    assert await watch.wait_clique_for_claim(REF, DeviceWaitQueue(released), soon()) == "c.1"
