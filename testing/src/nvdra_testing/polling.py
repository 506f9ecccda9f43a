"""Waiting for another process that has no way to notify the test."""

import asyncio
from collections.abc import Callable

POLL_S = 0.03
WAIT_S = 30
"""What has not happened by then does not happen; two cores that run ten tests are slow."""


async def wait_until(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Poll until the condition holds, or raise TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(POLL_S)
