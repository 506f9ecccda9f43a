# SPDX-License-Identifier: Apache-2.0
"""A wait for an event says whether the event came in time."""

import asyncio

from nvdra_runtime.process import timeouts


async def test_an_event_that_is_set_ends_the_wait() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await timeouts.wait_for_event(event, None)


async def test_without_the_event_the_wait_ends_at_its_timeout() -> None:
    assert not await timeouts.wait_for_event(asyncio.Event(), 0.01)
