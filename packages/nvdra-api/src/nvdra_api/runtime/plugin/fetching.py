"""Reading a claim for a prepare, and again after it had to wait for another claim's devices.

An API server that does not answer is asked again in time.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

from nvdra_api.protocol import backoff
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import Overloaded
from nvdra_api.runtime.plugin.turns import Tell, Turns
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types import keys
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import RetryableError
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.prepared import PreparedClaim

ATTEMPT_S = 10.0
"""How long one attempt to read a claim may take: an answer that is slow by seconds is waited for, a
connection whose other end is gone without a word is not."""

AGAIN = Backoff(first_s=0.05, ceiling_s=2.0)
"""Between attempts: a hiccup costs a prepare little, an API server that is back is noticed within
two seconds."""

Fetch = Callable[[ClaimRef, float], Awaitable[ResourceClaim]]
"""Reads a claim by the deadline: `Claims.fetch`."""

Take = Callable[[ResourceClaim, float], Awaitable[PreparedClaim]]
"""Prepares a claim by the deadline, or raises `DeviceInUseError`."""


class Claims:
    """The claims of the cluster, as prepares read them."""

    def __init__(self, api: Client, turns: Turns, telemetry: Telemetry) -> None:
        self._api = api
        self._turns = turns
        self._telemetry = telemetry

    async def fetch(self, ref: ClaimRef, deadline: float) -> ResourceClaim:
        """The claim as it is now; an API server that does not answer is asked again until then.

        Raises:
            PermanentError: `ClaimNotFound`, `ClaimUIDChanged`.
            RetryableError: `ApiUnavailable`, with what was last seen.
        """
        with self._telemetry.step("fetch claim") as span:
            began = asyncio.get_running_loop().time()
            for attempts in itertools.count(1):
                now = asyncio.get_running_loop().time()
                try:
                    return await self._api.claim(ref, min(deadline, now + ATTEMPT_S))
                except RetryableError as error:
                    pause_s = _pause(error, attempts)
                    now = asyncio.get_running_loop().time()
                    last = _after(error, attempts, now - began)
                    if not backoff.fits(pause_s, now, deadline):
                        raise last from error.__cause__
                    span.event("retry", {keys.ERROR_TYPE: error.reason, "error": error.message})
                    await self._turns.pause(ref, last, pause_s)
            raise AssertionError("unreachable")

    async def in_turn(
        self,
        claim: ResourceClaim,
        refusal: DeviceInUseError,
        take: Take,
        deadline: float,
        tell: Tell,
    ) -> PreparedClaim:
        """What `take` returns once nobody else holds what the claim was allocated.

        Args:
            claim: As it was read just now.
            refusal: What `take` has raised for it.
            take: Tried again whenever the claim that stands in the way has let go.
            deadline: Monotonic seconds; every wait ends by then.
            tell: Called once when it takes long.

        Raises:
            DriverError: Of `take`; the last refusal when the time is up.
        """
        async with self._turns.turn(claim.ref, deadline, tell) as turn:
            while True:
                with self._telemetry.step("wait device", {keys.HOLDER: refusal.holder.uid}):
                    await turn.come(refusal)
                # The claim may have gone while we waited; nobody would ever unprepare it.
                claim = await self.fetch(claim.ref, deadline)
                try:
                    return await take(claim, deadline)
                except DeviceInUseError as error:
                    refusal = error


def _pause(error: RetryableError, attempts: int) -> float:
    """Seconds before the next attempt; an API server that names a time is not asked before."""
    pause_s = AGAIN.delay(attempts, random.random())  # noqa: S311 - spreads load, hides nothing
    return max(pause_s, error.retry_after_s) if isinstance(error, Overloaded) else pause_s


def _after(error: RetryableError, attempts: int, seconds: float) -> RetryableError:
    """The same, saying how hard it was tried."""
    if attempts == 1:
        return error
    message = f"{error.message} (asked {attempts} times in {seconds:.0f} s)"
    return RetryableError(error.reason, message, error.remedy, since=error.since, **error.facts)
