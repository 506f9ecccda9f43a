# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest
from nvdra_runtime.kube.rate_limiter import RateLimiter


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_burst_passes_at_once() -> None:
    bucket = RateLimiter(qps=0.001, burst=3)
    for _ in range(3):
        await bucket.acquire(deadline=now() + 1)


async def test_who_would_wait_past_the_deadline_is_told_at_once() -> None:
    bucket = RateLimiter(qps=0.001, burst=1)
    await bucket.acquire(deadline=now() + 1)
    before = now()
    with pytest.raises(TimeoutError, match="rate limit"):
        await bucket.acquire(deadline=now() + 5)
    assert now() - before < 1


async def test_after_the_burst_requests_pass_at_the_rate() -> None:
    bucket = RateLimiter(qps=200, burst=1)
    before = now()
    for _ in range(21):
        await bucket.acquire(deadline=now() + 1)
    assert now() - before >= 20 / 200
