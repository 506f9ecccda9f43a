"""Killed before or after any write to the API server, another controller finishes what was begun.

The writes are recorded from undisturbed runs in the same test; a recorded one that no run was
struck at fails. `--crash-report=FILE` keeps the table of all outcomes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio
from campaign import cd_lane, on_domains, report
from campaign.cd_lane import Lane
from campaign.cd_operations import Abandon, Delete, Heal, Join, Make, Operation
from campaign.cd_strike import KILLED, LEADER_KILLED, LEADER_TOLD, Blow
from campaign.outcomes import Campaign

LANES = 3

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lanes() -> AsyncIterator[list[Lane]]:
    """Several API servers: a controller looks after all of one."""
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            opening = [group.create_task(_opened(stack)) for _ in range(LANES)]
        yield [task.result() for task in opening]


async def _opened(stack: AsyncExitStack) -> Lane:
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="nvdra-", dir="/dev/shm")))
    return await stack.enter_async_context(cd_lane.opened(directory))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Make, Join, Heal, Delete, Abandon], ids=lambda kind: kind.name)
async def test_a_kill_around_any_write_is_made_good_by_the_next_controller(
    kind: type[Operation], lanes: list[Lane], campaigns: list[Campaign]
) -> None:
    await _judge(lanes, kind(), KILLED, campaigns)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Make, Delete], ids=lambda kind: kind.name)
async def test_a_leader_that_is_told_to_end_at_any_write_hands_over_and_acts_no_more(
    kind: type[Operation], lanes: list[Lane], campaigns: list[Campaign]
) -> None:
    await _judge(lanes, kind(), LEADER_TOLD, campaigns)


@pytest.mark.timeout(600)
async def test_a_leader_that_is_killed_at_any_write_is_followed_when_its_lease_has_run_out(
    lanes: list[Lane], campaigns: list[Campaign]
) -> None:
    await _judge(lanes, Make(), LEADER_KILLED, campaigns)


async def _judge(
    lanes: list[Lane], operation: Operation, blow: Blow, campaigns: list[Campaign]
) -> None:
    found = await on_domains.campaign(lanes, operation, blow)
    campaigns.append(found)
    assert found.rows
    assert not found.missed + found.wrong, "\n" + report.page([found])
