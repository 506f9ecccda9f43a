# SPDX-License-Identifier: Apache-2.0
"""The operating system's clocks, as the rest of the program sees them."""

import asyncio
from datetime import UTC, datetime, timedelta

from nvdra_runtime.process.clock import Clock, SystemClock


def test_the_wall_clock_is_utc_and_the_present() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(UTC)
    moment = clock.now()
    assert before <= moment <= datetime.now(UTC)
    assert moment.utcoffset() == timedelta(0)


async def test_monotonic_time_is_the_event_loops() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    moment = SystemClock().monotonic()
    assert before <= moment <= loop.time()
