"""Calls to the API server that are made again until the caller's deadline.

What fails otherwise than because the server is not there fails at once.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from nvdra_api.protocol import backoff
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.types.errors import DriverError, Reason, RetryableError

ATTEMPT_S: Final = 10.0
"""How long one call may take: a connection whose other end is gone without a word is let go."""
AGAIN: Final = Backoff(first_s=0.05, ceiling_s=2.0)

T = TypeVar("T")

Pause = Callable[[DriverError, float], Awaitable[None]]
"""Waits so many seconds before the next attempt at what failed so; may end it all instead."""


async def sleep(error: DriverError, seconds: float) -> None:
    """The pause of who waits whatever happens."""
    del error
    await asyncio.sleep(seconds)


async def until(deadline: float, call: Callable[[float], Awaitable[T]], pause: Pause = sleep) -> T:
    """What the call returns; it is given the deadline of each attempt.

    Raises:
        DriverError: What the call raised; `ApiUnavailable` only when the time is up.
    """
    clock = asyncio.get_running_loop().time
    for attempts in itertools.count(1):
        try:
            return await call(min(deadline, clock() + ATTEMPT_S))
        except RetryableError as error:
            pause_s = AGAIN.delay(attempts, random.random())  # noqa: S311 - spreads load
            is_late = not backoff.fits(pause_s, clock(), deadline)
            if error.reason is not Reason.API_UNAVAILABLE or is_late:
                raise
            await pause(error, pause_s)
    raise AssertionError("unreachable")
