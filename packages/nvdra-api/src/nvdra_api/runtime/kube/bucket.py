"""Client-side rate limit, as every Kubernetes client has one: so many requests a second, a burst.

First come, first served; who would have to wait past the deadline is told at once.
"""

import asyncio


class Bucket:
    """Tokens that refill by time; taking one may leave a debt that the taker sleeps off."""

    def __init__(self, qps: float, burst: int) -> None:
        """Allow `burst` requests at once and `qps` a second in the long run."""
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at = 0.0

    async def take(self, deadline: float) -> None:
        """Wait for one request's turn.

        Raises:
            TimeoutError: the turn would come after the deadline; nothing was taken.
        """
        now = asyncio.get_running_loop().time()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._qps)
        self._filled_at = now
        wait_s = (1 - self._tokens) / self._qps
        if wait_s > 0 and now + wait_s > deadline:
            raise TimeoutError(f"the client's own rate limit asks for {wait_s:.1f} s of patience")
        self._tokens -= 1
        if wait_s > 0:
            await asyncio.sleep(wait_s)
