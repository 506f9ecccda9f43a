# SPDX-License-Identifier: Apache-2.0
"""After a kill before or after any write to the API server, another controller finishes the work.

The writes are recorded from undisturbed runs in the same test and compared with the golden list of
`nvdra_testing.crash_campaigns.golden_points`. The test fails if no run was killed at a selected
write. `SEED=` repeats a selection, `--soak` selects every write, and `--crash-report=FILE` stores
the table of all outcomes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio
from nvdra_testing.crash_campaigns import controller_campaign, controller_sandbox, golden_points
from nvdra_testing.crash_campaigns.controller_operations import (
    CreateDomain,
    DeleteFormedDomain,
    DeleteFormingDomain,
    FirstDaemonJoins,
    Operation,
    RepairChildren,
)
from nvdra_testing.crash_campaigns.controller_sandbox import ControllerSandbox
from nvdra_testing.crash_campaigns.controller_strikes import (
    KILLED,
    LEADER_KILLED,
    LEADER_TERMINATED,
    FailureMode,
)
from nvdra_testing.crash_campaigns.pytest_plugin import Campaigns

SANDBOXES = 3

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[list[ControllerSandbox]]:
    """Several API servers, because a controller reconciles all domains of its API server."""
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            opening = [group.create_task(_opened(stack)) for _ in range(SANDBOXES)]
        yield [task.result() for task in opening]


async def _opened(stack: AsyncExitStack) -> ControllerSandbox:
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="nvdra-", dir="/dev/shm")))
    return await stack.enter_async_context(controller_sandbox.open_sandbox(directory))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [
        CreateDomain,
        FirstDaemonJoins,
        DeleteFormedDomain,
        pytest.param(RepairChildren, marks=pytest.mark.soak),
        pytest.param(DeleteFormingDomain, marks=pytest.mark.soak),
    ],
    ids=lambda kind: kind.name,
)
async def test_the_next_controller_completes_the_work_after_a_kill_at_any_write(
    kind: type[Operation], sandboxes: list[ControllerSandbox], campaigns: Campaigns
) -> None:
    await _run(sandboxes, kind(), KILLED, campaigns)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [CreateDomain, DeleteFormedDomain], ids=lambda kind: kind.name)
async def test_a_leader_that_is_stopped_at_any_write_hands_over_and_writes_no_more(
    kind: type[Operation], sandboxes: list[ControllerSandbox], campaigns: Campaigns
) -> None:
    await _run(sandboxes, kind(), LEADER_TERMINATED, campaigns)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_leader_that_is_killed_at_any_write_is_replaced_when_its_lease_expires(
    sandboxes: list[ControllerSandbox], campaigns: Campaigns
) -> None:
    await _run(sandboxes, CreateDomain(), LEADER_KILLED, campaigns)


async def _run(
    sandboxes: list[ControllerSandbox],
    operation: Operation,
    failure: FailureMode,
    campaigns: Campaigns,
) -> None:
    selection = campaigns.select(golden_points.load("controller"))
    campaigns.check(
        await controller_campaign.run_controller_campaign(sandboxes, operation, failure, selection)
    )
