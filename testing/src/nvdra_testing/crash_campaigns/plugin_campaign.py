# SPDX-License-Identifier: Apache-2.0
"""A campaign against a kubelet plugin, on simulated nodes."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import plugin_sandbox, plugin_strikes, runner
from nvdra_testing.crash_campaigns.outcomes import CampaignResult
from nvdra_testing.crash_campaigns.plugin_operations import Operation
from nvdra_testing.crash_campaigns.plugin_sandbox import GPU_PLUGIN, TestedPlugin
from nvdra_testing.crash_campaigns.selection import Selection

SANDBOXES = 3


async def run_plugin_campaign(
    server: ApiServer,
    operation: Operation,
    selection: Selection,
    tested: TestedPlugin = GPU_PLUGIN,
    flags: Sequence[str] = (),
) -> CampaignResult:
    """Record the operation, and kill the plugin at each selected call."""
    async with AsyncExitStack() as stack:
        sandboxes = [
            await stack.enter_async_context(plugin_sandbox.open_sandbox(server, tested, flags))
            for _ in range(SANDBOXES)
        ]
        for each in sandboxes:
            await stack.enter_async_context(operation.neighbours(each))
        await asyncio.gather(*(operation.prepare_sandbox(each) for each in sandboxes))
        return await runner.run_campaign(
            operation.name,
            sandboxes,
            lambda sandbox: plugin_strikes.record_plugin(sandbox, operation),
            lambda sandbox, row: plugin_strikes.strike_plugin(sandbox, operation, row),
            selection,
        )
