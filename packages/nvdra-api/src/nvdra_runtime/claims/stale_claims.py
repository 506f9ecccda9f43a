# SPDX-License-Identifier: Apache-2.0
"""Unprepares stale claims: they no longer exist, and no pod on this node can use them.

The kubelet's own record is looked at first, once in ten minutes: it names every claim that a pod of
this node uses, so an idle node asks the API server for nothing. A claim that the kubelet does not
name is read from the API server, and so is, at once, one whose devices another claim waits for.
Whether the claim exists is not enough: that of a pod that was deleted by force is gone while its
containers still run. Source: docs/design.md, "Settled"; docs/reference/gpu-prepare.md, "Where nvdra
differs".
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic

from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef, ResourceClaim

from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.claims.kubelet_checkpoint import CheckpointUnreadable, KubeletCheckpoint
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import PreparedClaimRecord, RecordT
from nvdra_runtime.kube.client import Client
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.background_tasks import BackgroundTasks
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)

PERIOD_S = 600.0
"""The kubelet's record is read once in this time, and so is each claim that it does not name."""

_READ_TIMEOUT_S = 20.0
_UNPREPARE_TIMEOUT_S = 45.0

_NOT_FOUND_REASONS = frozenset({Reason.CLAIM_NOT_FOUND, Reason.CLAIM_UID_CHANGED})

Unprepare = Callable[[ClaimRef, float], Awaitable[None]]
"""Unprepares a claim: `ClaimService.unprepare_stale`."""


class StaleClaimCleanup(Generic[RecordT]):
    """Checks the prepared claims of one driver."""

    def __init__(
        self,
        driver: str,
        api: Client,
        prepared_claims: PreparedClaims[RecordT],
        wait_queue: DeviceWaitQueue,
        checkpoint: KubeletCheckpoint,
        unprepare: Unprepare,
        period_s: float = PERIOD_S,
    ) -> None:
        self._driver = driver
        self._api = api
        self._prepared_claims = prepared_claims
        self._wait_queue = wait_queue
        self._checkpoint = checkpoint
        self._unprepare = unprepare
        self._period_s = period_s
        self._checking: set[ClaimUID] = set()

    async def run_periodically(self) -> None:
        """Check what the kubelet does not name once per period, evenly spread. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            uids = await self._claims_unknown_to_kubelet()
            random.shuffle(uids)
            for position, uid in enumerate(uids):
                share = (position + random.random()) / len(uids)  # noqa: S311 - spreads load
                await asyncio.sleep(started + share * self._period_s - loop.time())
                with background_tasks.contain("A prepared claim cannot be checked", claim=uid):
                    await self._check(uid)
            await asyncio.sleep(started + self._period_s - loop.time())

    async def check_blocking_claims(self) -> None:
        """Check each claim that another claim waits for. Run until cancelled."""
        async with BackgroundTasks() as tasks:
            while True:
                uid = await self._wait_queue.blocking_claims.get()
                if uid not in self._checking:
                    tasks.start_once("stale claims", partial(self._check, uid), uid)

    async def _claims_unknown_to_kubelet(self) -> list[ClaimUID]:
        """The prepared claims that the kubelet's record does not name; none if it is unreadable."""
        uids = self._prepared_claims.held
        if not uids:
            return []
        try:
            async with Worker("checkpoint") as worker:
                known = await worker.run(self._checkpoint.claims)
        except CheckpointUnreadable as error:
            LOG.warning(
                "No prepared claim is checked: it is not known whether a pod still uses it",
                error=str(error),
            )
            return []
        return [uid for uid in uids if uid not in known]

    async def _check(self, uid: ClaimUID) -> None:
        """Unprepare the claim if no pod uses it and it no longer exists."""
        ref = self._ref(uid)
        if ref is None or uid in self._checking:
            return
        self._checking.add(uid)
        try:
            if await self._is_used(ref):
                return
            reason = await self._stale_reason(ref, self._prepared_claims.get(uid))
            # The kubelet may have admitted a pod since, with the claim as it was before.
            if reason and not await self._is_used(ref):
                LOG.info("Unpreparing a claim that is gone", claim=str(ref), why=reason)
                await self._unprepare(ref, asyncio.get_running_loop().time() + _UNPREPARE_TIMEOUT_S)
        except DriverError as error:
            LOG.v(2, "A prepared claim cannot be checked", claim=str(ref), error=str(error))
        finally:
            self._checking.discard(uid)

    def _ref(self, uid: ClaimUID) -> ClaimRef | None:
        record = self._prepared_claims.get(uid)
        return self._prepared_claims.unreadable.get(uid) if record is None else record.ref

    async def _stale_reason(self, ref: ClaimRef, record: PreparedClaimRecord | None) -> str:
        """Why the claim is stale; empty if it is not."""
        try:
            claim = await self._api.get_claim(
                ref, asyncio.get_running_loop().time() + _READ_TIMEOUT_S
            )
        except PermanentError as error:
            if error.reason in _NOT_FOUND_REASONS:
                return error.message
            raise
        if record is None or _is_allocated(claim, record, self._driver):
            return ""
        return f"claim {ref} is no longer allocated to the devices that it holds"

    async def _is_used(self, ref: ClaimRef) -> bool:
        """Whether a pod on this node may use the claim's devices."""
        record = self._prepared_claims.get(ref.uid)
        pods = () if record is None else record.pods
        try:
            async with Worker("checkpoint") as worker:
                users = await worker.run(self._checkpoint.find_users, ref.uid, pods)
        except CheckpointUnreadable as error:
            LOG.warning(
                "A claim stays prepared: it is not known whether a pod still uses it",
                claim=str(ref),
                error=str(error),
            )
            return True
        if users:
            LOG.v(4, "A claim stays prepared: a pod uses it", claim=str(ref), users=users)
        return bool(users)


def _is_allocated(claim: ResourceClaim, record: PreparedClaimRecord, driver: str) -> bool:
    """Whether any of the record's devices is allocated; an allocation changes as a whole."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    allocated = {(result.pool, result.device) for result in results if result.driver == driver}
    return any((device.pool, device.device) in allocated for device in record.devices)
