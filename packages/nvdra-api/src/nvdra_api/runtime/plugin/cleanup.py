"""Held claims that are gone: found, and released once no pod on this node can still use them.

Each held claim is asked for once in ten minutes, and at once when it stands in another claim's way.
The API server alone does not decide: the claim of a force-deleted pod is gone while its container
runs. Source: design.md, "Settled"; spec/gpu-prepare.md §26.15.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Generic

from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.plugin.evidence import Evidence, NoEvidence
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import DriverError, PermanentError, Reason
from nvdra_api.types.holdings import H, Holding
from nvdra_api.types.ids import ClaimUID

LOG = logs.logger(__name__)

ROUND_S = 600.0
"""Each held claim is asked for once in this time: 1,000 nodes with 8 claims each are 13 requests a
second for the API server."""

_ASK_S = 20.0
_RELEASE_S = 45.0

_GONE = frozenset({Reason.CLAIM_NOT_FOUND, Reason.CLAIM_UID_CHANGED})

Release = Callable[[ClaimRef, float], Awaitable[None]]
"""Unprepares a claim by the deadline."""


class Cleanup(Generic[H]):
    """Looks after the claims that one driver holds; two tasks that run for ever."""

    def __init__(
        self,
        driver: str,
        api: Client,
        held: HeldClaims[H],
        turns: Turns,
        evidence: Evidence,
        release: Release,
        round_s: float = ROUND_S,
    ) -> None:
        self._driver = driver
        self._api = api
        self._held = held
        self._turns = turns
        self._evidence = evidence
        self._release = release
        self._round_s = round_s
        self._looked_at: set[ClaimUID] = set()

    async def go_round(self) -> None:
        """Look at every held claim, spread over the round, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            uids = [*self._held, *self._held.unreadable]
            random.shuffle(uids)
            for place, uid in enumerate(uids):
                share = (place + random.random()) / len(uids)  # noqa: S311 - spreads load
                await asyncio.sleep(began + share * self._round_s - loop.time())
                await self._look_at(uid)
            await asyncio.sleep(began + self._round_s - loop.time())

    async def clear_the_way(self) -> None:
        """Look at each claim that stands in another's way, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                uid = await self._turns.obstacles.get()
                if uid not in self._looked_at:
                    group.create_task(self._look_at(uid), name=f"look at {uid}")

    async def _look_at(self, uid: ClaimUID) -> None:
        """Release the claim if it is gone and nobody uses it."""
        ref = self._ref(uid)
        if ref is None or uid in self._looked_at:
            return
        self._looked_at.add(uid)
        try:
            gone = await self._gone(ref, self._held.get(uid))
            if gone and not await self._is_used(ref, gone):
                LOG.info("Releasing a claim that is gone", claim=str(ref), why=gone)
                await self._release(ref, asyncio.get_running_loop().time() + _RELEASE_S)
        except DriverError as error:
            LOG.v(2, "A held claim could not be looked after", claim=str(ref), error=str(error))
        finally:
            self._looked_at.discard(uid)

    def _ref(self, uid: ClaimUID) -> ClaimRef | None:
        holding = self._held.get(uid)
        return self._held.unreadable.get(uid) if holding is None else holding.ref

    async def _gone(self, ref: ClaimRef, holding: Holding | None) -> str:
        """Why nothing entitles anybody to what is held any more; empty when something does."""
        try:
            claim = await self._api.claim(ref, asyncio.get_running_loop().time() + _ASK_S)
        except PermanentError as error:
            if error.reason in _GONE:
                return error.message
            raise
        if holding is None or _is_allocated(claim, holding, self._driver):
            return ""
        return f"claim {ref} is not allocated to what it holds any more"

    async def _is_used(self, ref: ClaimRef, gone: str) -> bool:
        """Whether a pod on this node may use the claim's devices all the same."""
        holding = self._held.get(ref.uid)
        pods = () if holding is None else holding.pods
        try:
            async with Worker("evidence") as worker:
                users = await worker.run(self._evidence.users, ref.uid, pods)
        except NoEvidence as error:
            LOG.warning(
                "A claim is gone and stays held: whether a pod still uses it cannot be told",
                claim=str(ref),
                why=gone,
                error=str(error),
            )
            return True
        if users:
            LOG.v(2, "A claim is gone and still used", claim=str(ref), why=gone, users=users)
        return bool(users)


def _is_allocated(claim: ResourceClaim, holding: Holding, driver: str) -> bool:
    """Whether the claim has any of the devices it holds; an allocation changes as a whole."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    allocated = {(result.pool, result.device) for result in results if result.driver == driver}
    return any((device.pool, device.device) in allocated for device in holding.devices)
