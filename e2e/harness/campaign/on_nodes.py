"""A campaign against the GPU plugin, on simulated nodes."""

import asyncio
from contextlib import AsyncExitStack

from apiserver import ApiServer

from campaign import lane, run, strike
from campaign.operations import Operation
from campaign.outcomes import Campaign

LANES = 3


async def campaign(server: ApiServer, operation: Operation) -> Campaign:
    """Record the operation, and kill the plugin at each of its calls."""
    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(lane.opened(server)) for _ in range(LANES)]
        await asyncio.gather(*(operation.make_ready(each) for each in lanes))
        return await run.campaign(
            operation.name,
            lanes,
            lambda each: strike.record(each, operation),
            lambda each, row: strike.strike(each, operation, row),
        )
