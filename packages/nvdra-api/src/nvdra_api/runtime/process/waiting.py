"""Waiting for what may or may not happen."""

import asyncio


async def within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Until the event, or for so long (None: however long); whether the event is set."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
