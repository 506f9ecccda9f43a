# SPDX-License-Identifier: Apache-2.0
"""Waiting for another process that has no way to notify the test."""

import asyncio
from collections.abc import Callable

POLL_S = 0.03
WAIT_S = 60
"""What has not happened by then does not happen. Two cores with four busy processes and ten tests
are slow: a component that starts in a second takes 20 there. A test that is about a time states it.
"""


async def wait_until(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Poll until the condition holds, or raise TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(POLL_S)
