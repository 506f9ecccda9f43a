# SPDX-License-Identifier: Apache-2.0
"""Reads claims from the API server."""

import asyncio
import itertools
import random

from nvdra_api.errors import RetryableError
from nvdra_api.resource.claims import ClaimRef, ResourceClaim

from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Overloaded
from nvdra_runtime.process import backoff
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.instrumentation import Telemetry

ATTEMPT_TIMEOUT_S = 10.0
"""How long one attempt to read a claim may take. It is long enough for a slow API server, and short
enough to notice a connection whose other end has disappeared."""

RETRY_BACKOFF = Backoff(first_s=0.05, ceiling_s=2.0)
"""Between attempts. A prepare loses little time to a brief failure, and notices within two seconds
that the API server is back."""


class ClaimReader:
    """Reads claims, and tries again while the API server is not available."""

    def __init__(self, api: Client, wait_queue: DeviceWaitQueue, telemetry: Telemetry) -> None:
        self._api = api
        self._wait_queue = wait_queue
        self._telemetry = telemetry

    async def fetch(self, ref: ClaimRef, deadline: float) -> ResourceClaim:
        """Get the claim. Tries again until the deadline if the API server does not answer.

        Raises:
            PermanentError: `ClaimNotFound`, `ClaimUIDChanged`.
            RetryableError: `ApiUnavailable`, with the last error.
        """
        with self._telemetry.step("fetch claim") as span:
            started = asyncio.get_running_loop().time()
            for attempts in itertools.count(1):
                now = asyncio.get_running_loop().time()
                try:
                    return await self._api.get_claim(ref, min(deadline, now + ATTEMPT_TIMEOUT_S))
                except RetryableError as error:
                    delay_s = _retry_delay_s(error, attempts)
                    now = asyncio.get_running_loop().time()
                    last = _with_attempts(error, attempts, now - started)
                    if not backoff.fits(delay_s, now, deadline):
                        raise last from error.__cause__
                    span.add_event("retry", {keys.ERROR_TYPE: error.reason, "error": error.message})
                    await self._wait_queue.pause(ref, last, delay_s)
            raise AssertionError("unreachable")


def _retry_delay_s(error: RetryableError, attempts: int) -> float:
    """Seconds before the next attempt; at least as many as the API server asks for."""
    delay_s = RETRY_BACKOFF.delay(attempts, random.random())  # noqa: S311 - spreads load
    return max(delay_s, error.retry_after_s) if isinstance(error, Overloaded) else delay_s


def _with_attempts(error: RetryableError, attempts: int, seconds: float) -> RetryableError:
    """The same error with the number of attempts."""
    if attempts == 1:
        return error
    message = f"{error.message} (asked {attempts} times in {seconds:.0f} s)"
    return RetryableError(error.reason, message, error.remedy, since=error.since, **error.facts)
