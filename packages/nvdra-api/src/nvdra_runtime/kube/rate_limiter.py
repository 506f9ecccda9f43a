# SPDX-License-Identifier: Apache-2.0
"""The client-side rate limit: queries per second and a burst, as in every Kubernetes client.

Requests are served in order. A request that would have to wait past its deadline fails at once.
"""

import asyncio


class RateLimiter:
    """A token bucket. A request may take a token in advance, and then sleeps until it is there."""

    def __init__(self, qps: float, burst: int) -> None:
        """Allow `burst` requests at once and `qps` per second on average."""
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at = 0.0

    async def acquire(self, deadline: float) -> None:
        """Wait until one request may be sent.

        Raises:
            TimeoutError: The request would have to wait past the deadline. It takes no token.
        """
        now = asyncio.get_running_loop().time()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._qps)
        self._filled_at = now
        wait_s = (1 - self._tokens) / self._qps
        if wait_s > 0 and now + wait_s > deadline:
            raise TimeoutError(f"the client-side rate limit requires a wait of {wait_s:.1f} s")
        self._tokens -= 1
        if wait_s > 0:
            await asyncio.sleep(wait_s)
