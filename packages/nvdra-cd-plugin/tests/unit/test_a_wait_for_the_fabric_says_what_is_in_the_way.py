"""Claims that wait until the node's clique is known."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import DriverError, Reason, RetryableError
from nvdra_api.types.ids import ClaimUID, CliqueID
from nvdra_cd_plugin.fabric_watch import FabricWatch, NvmlLook, Rules, View

REF = ClaimRef("team-a", "w-channel", ClaimUID("c-1"))
NO_DRIVER = RetryableError(Reason.DRIVER_MISMATCH, "there is no driver", "install it")
ON_ITS_WAY = RetryableError(Reason.FABRIC_ERROR, "GPUs have not joined", "wait")


async def released(uid: ClaimUID) -> None:
    raise AssertionError(uid)


@pytest_asyncio.fixture
async def watch(tmp_path: Path) -> AsyncIterator[FabricWatch]:
    host = Host(proc=tmp_path, sys=tmp_path, dev=tmp_path, driver_root=tmp_path)
    rules = Rules(is_strict=True, tolerates_unfinished=False, needs_names=True)
    async with Worker("nvml") as worker:
        yield FabricWatch(NvmlLook(host, rules, lambda *_: None), worker)


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_wait_ends_with_what_is_in_the_way_then_and_not_with_what_was(
    watch: FabricWatch, is_given_up: bool
) -> None:
    turns = Turns(released)
    watch.view = View(problem=NO_DRIVER)

    async def look_again() -> None:
        watch.view = View(problem=ON_ITS_WAY)
        if is_given_up:
            turns.give_up(REF.uid)

    async with asyncio.TaskGroup() as group:
        group.create_task(look_again())
        with pytest.raises(DriverError) as raised:
            await watch.wanted(REF, turns, soon(5.0 if is_given_up else 0.05))
    assert raised.value is ON_ITS_WAY


async def test_while_nvml_has_said_nothing_that_is_what_is_told(watch: FabricWatch) -> None:
    with pytest.raises(DriverError) as raised:
        await watch.wanted(REF, Turns(released), soon(0.05))
    assert raised.value.reason is Reason.DEADLINE_EXCEEDED


async def test_a_clique_that_is_known_is_not_waited_for(watch: FabricWatch) -> None:
    watch.view = View(CliqueID("c.1"), ON_ITS_WAY)
    assert await watch.wanted(REF, Turns(released), soon()) == "c.1"
