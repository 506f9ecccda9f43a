# SPDX-License-Identifier: Apache-2.0
"""Repeats calls to the API server until the caller's deadline.

Only `ApiUnavailable` is retried; every other error is raised at once.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.process import backoff
from nvdra_runtime.process.backoff import Backoff

ATTEMPT_TIMEOUT_S: Final = 10.0
"""For one attempt, so that a connection whose peer vanished without a reset is dropped."""
BACKOFF: Final = Backoff(first_s=0.05, ceiling_s=2.0)

T = TypeVar("T")

Call = Callable[[float], Awaitable[T]]
"""One attempt; its argument is the attempt's own deadline, in monotonic seconds."""

Pause = Callable[[DriverError, float], Awaitable[None]]
"""Waits that many seconds before the next attempt; the error is that of the last one."""


async def retry(deadline: float, call: Call[T], pause: Pause | None = None) -> T:
    """Return what the call returns; repeat it until the deadline, with pauses.

    Raises:
        DriverError: What the call or the pause raised; `ApiUnavailable` when no time is left.
    """
    for attempt in itertools.count(1):
        now = asyncio.get_running_loop().time()
        try:
            return await call(min(deadline, now + ATTEMPT_TIMEOUT_S))
        except RetryableError as error:
            delay_s = _delay_s(error, attempt, deadline)
            await (asyncio.sleep(delay_s) if pause is None else pause(error, delay_s))
    raise AssertionError("unreachable")


async def retry_for_claim(
    ref: ClaimRef, waits: DeviceWaitQueue, deadline: float, call: Call[T]
) -> T:
    """Do as `retry`, but stop when the kubelet unprepares the claim meanwhile."""
    return await retry(deadline, call, partial(waits.pause, ref))


def _delay_s(error: DriverError, attempt: int, deadline: float) -> float:
    """Seconds before the next attempt.

    Raises:
        DriverError: `error`: it must not be retried, or no time is left.
    """
    delay_s = BACKOFF.delay(attempt, random.random())  # noqa: S311 - spreads load
    has_time = backoff.fits(delay_s, asyncio.get_running_loop().time(), deadline)
    if error.reason is not Reason.API_UNAVAILABLE or not has_time:
        raise error
    return delay_s
