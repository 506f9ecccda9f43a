# SPDX-License-Identifier: Apache-2.0
"""Waits with a timeout."""

import asyncio


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for the event. Returns False if it is not set in time; None waits without a limit."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
