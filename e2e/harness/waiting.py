"""Wait for what another process does, where it has no way to tell us."""

import asyncio
from collections.abc import Callable

LOOK_S = 0.02


async def until(is_so: Callable[[], object], timeout_s: float = 10) -> None:
    """Look again and again until it is so; TimeoutError says that it never was."""
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(LOOK_S)
