# SPDX-License-Identifier: Apache-2.0
"""Claims that wait until the node's clique is known."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID, CliqueID
from nvdra_api.resource.claims import ClaimRef
from nvdra_cd_plugin.fabric import clique
from nvdra_cd_plugin.fabric.known_clique import KnownClique
from nvdra_cd_plugin.fabric.monitor import FabricMonitor, FabricStatus, ReadRelease
from nvdra_cd_plugin.fabric.nvml_query import FabricAnswer, FabricPolicy, FabricQuery
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.nvml_lock import SessionHold
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker

RULES = FabricPolicy(is_strict=True, tolerates_unfinished=False, requires_dns_names=True)
REF = ClaimRef("team-a", "w-channel", ClaimUID("c-1"))
NO_DRIVER = RetryableError(Reason.DRIVER_MISMATCH, "there is no driver", "install it")
LOST = PermanentError(Reason.DEVICE_UNHEALTHY, "a GPU is lost", "reset it")
RELEASED = RetryableError(Reason.NVML_RELEASED, "an administrator works on the GPUs", "wait")
ON_ITS_WAY = RetryableError(Reason.FABRIC_ERROR, "GPUs have not joined", "wait")


async def released(uid: ClaimUID) -> None:
    raise AssertionError(uid)


async def not_released() -> None:
    return None


async def a_release() -> DriverError:
    return RELEASED


def write_boot_id(root: Path) -> None:
    path = root / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("boot-1")


def host(root: Path) -> Host:
    return Host(proc=root, sys=root, dev=root, driver_root=root)


def known_clique(root: Path) -> KnownClique:
    return KnownClique(root, host(root), RULES)


def monitor(root: Path, worker: Worker, read_release: ReadRelease = not_released) -> FabricMonitor:
    query = FabricQuery(host(root), RULES, lambda *_: None, SessionHold(root))
    return FabricMonitor(query, worker, known_clique(root), worker, read_release, asyncio.Event())


@pytest_asyncio.fixture
async def watch(tmp_path: Path) -> AsyncIterator[FabricMonitor]:
    async with Worker("nvml") as worker:
        yield monitor(tmp_path, worker)


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


@pytest.mark.parametrize(
    ("result", "expected", "of_gpus"),
    [
        (FabricAnswer(CliqueID("c.2")), FabricStatus(CliqueID("c.2")), "c.2"),
        (FabricAnswer(CliqueID("c.2"), LOST), FabricStatus(CliqueID("c.2"), LOST), "c.2"),
        (FabricAnswer(None, ON_ITS_WAY), FabricStatus(CliqueID("c.1"), ON_ITS_WAY), "c.1"),
        (
            FabricAnswer(None, ON_ITS_WAY, is_attached=False),
            FabricStatus(CliqueID("c.1"), ON_ITS_WAY, is_attached=False),
            "",
        ),
        (NO_DRIVER, FabricStatus(CliqueID("c.1"), NO_DRIVER), "c.1"),
    ],
)
def test_a_known_clique_is_kept_until_there_is_another_one(
    result: FabricAnswer | DriverError, expected: FabricStatus, of_gpus: str
) -> None:
    status = FabricStatus(CliqueID("c.1"), LOST).updated(result)
    assert status == expected
    assert status.gpus_clique == of_gpus


def test_gpus_that_are_in_no_fabric_any_more_are_a_problem_of_their_node() -> None:
    status = FabricStatus(CliqueID("c.1")).updated(FabricAnswer(CliqueID(""), is_attached=False))
    assert (status.clique, status.gpus_clique) == ("c.1", "")
    assert str(status.problem) == str(clique.left_error(CliqueID("c.1")))
    while_released = status.updated(RELEASED)
    assert (while_released.gpus_clique, while_released.problem) == ("", RELEASED)
    assert while_released.updated(FabricAnswer(CliqueID("c.1"))) == FabricStatus(CliqueID("c.1"))


@pytest.mark.parametrize("known", [None, CliqueID("")])
def test_a_node_that_was_in_no_fabric_in_this_boot_has_not_left_one(known: CliqueID | None) -> None:
    nowhere = FabricAnswer(CliqueID(""), is_attached=False)
    status = FabricStatus(known).updated(nowhere)
    assert (status.gpus_clique, status.problem) == ("", None)
    joining = FabricStatus(known).updated(FabricAnswer(None, ON_ITS_WAY, is_attached=False))
    assert (joining.gpus_clique, joining.problem) == (known, ON_ITS_WAY)


@pytest.mark.parametrize("clique", [None, CliqueID("c.1")])
async def test_nothing_is_queried_while_nvml_is_released(
    tmp_path: Path, clique: CliqueID | None
) -> None:
    """There is no driver here, which a query would say."""
    write_boot_id(tmp_path)
    async with Worker("nvml") as worker:
        watch = monitor(tmp_path, worker, read_release=a_release)
        if clique is not None:
            known_clique(tmp_path).write(clique)
        async with background_tasks.running(fabric=watch.run):
            await watch.wait_for_change(0)
    assert watch.status == FabricStatus(clique, RELEASED)
    assert not worker.is_busy
