# SPDX-License-Identifier: Apache-2.0
"""A campaign against an IMEX daemon, in several domains side by side."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from nvdra_testing.control_plane import controller, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import daemon_sandbox, daemon_strikes, runner
from nvdra_testing.crash_campaigns.daemon_operations import DaemonOperation
from nvdra_testing.crash_campaigns.daemon_sandbox import DaemonSandbox
from nvdra_testing.crash_campaigns.outcomes import (
    CampaignResult,
    PointResult,
    Recording,
    StrikeResult,
)
from nvdra_testing.crash_campaigns.selection import Selection
from nvdra_testing.node.imex_daemons import DRIVER_NAMESPACE, MAX_NODES
from nvdra_testing.polling import wait_until

SANDBOXES: Final = 2
CONTROLLER_READY_S: Final = 90.0


async def run_daemon_campaign(
    server: ApiServer, operation: DaemonOperation, selection: Selection
) -> CampaignResult:
    """Record the operation, and strike the daemon at each selected call."""

    async def record(sandbox: DaemonSandbox) -> Recording:
        return await asyncio.to_thread(daemon_strikes.record_daemon, sandbox, operation)

    async def strike(sandbox: DaemonSandbox, row: PointResult) -> StrikeResult:
        return await asyncio.to_thread(daemon_strikes.strike_daemon, sandbox, operation, row)

    async with _open_sandboxes(server, operation) as sandboxes:
        return await runner.run_campaign(operation.name, sandboxes, record, strike, selection)


@asynccontextmanager
async def _open_sandboxes(
    server: ApiServer, operation: DaemonOperation
) -> AsyncIterator[list[DaemonSandbox]]:
    """Open the sandboxes in one driver's namespace, so that one controller serves all of them."""
    namespace = domain_objects.create_namespace(server, DRIVER_NAMESPACE)
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="nvdra-", dir="/dev/shm")))
        if operation.has_controller:
            limit = f"--max-nodes-per-imex-domain={MAX_NODES}"
            running = controller.run_controller(server, root, namespace, limit)
            await wait_until(stack.enter_context(running).is_ready, CONTROLLER_READY_S)
        sandboxes = []
        for number in range(SANDBOXES):
            (directory := root / str(number)).mkdir()
            opening = daemon_sandbox.open_sandbox(server, directory, namespace, operation.flags)
            sandboxes.append(await stack.enter_async_context(opening))
        if operation.has_peer:
            await asyncio.gather(*(asyncio.to_thread(each.start_peer) for each in sandboxes))
        yield sandboxes
