"""The root of a claim's trace and the wait in the scheduler: written after the fact, once.

At the end of the first attempt on this node, successful or not, so that a stuck pod has its trace.
It happens behind the answer and never delays one. Source: spec/tracing.md §1.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from nvdra_api.protocol import identity
from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import NotFound
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.active import failure_of
from nvdra_api.runtime.telemetry.spans import Failure
from nvdra_api.runtime.telemetry.traces import Telemetry, claim_attributes
from nvdra_api.types import names
from nvdra_api.types.claims import ClaimRef, Consumer, ResourceClaim
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import NodeName

LOG = logs.logger(__name__)

_QUEUE = 1024
"""Roots that may wait to be written; beyond it (an API server that hangs) the newest are let go."""

_LOOKUP_S = 5.0
"""How long the pod is asked for, where the claim does not say when it was allocated."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The first attempt at a claim on this node, as it ended.

    Attributes:
        claim: As fetched; None where that is what failed.
        started: When the call came in.
        ended: When the answer was ready.
        failure: None when the claim is prepared.
    """

    ref: ClaimRef
    claim: ResourceClaim | None
    started: datetime
    ended: datetime
    failure: Failure | None


def attempt(
    ref: ClaimRef,
    claim: ResourceClaim | None,
    started: datetime,
    ended: datetime,
    error: BaseException | None,
) -> Attempt:
    """An attempt and how it ended."""
    return Attempt(ref, claim, started, ended, None if error is None else failure_of(error))


class Roots:
    """Writes the root of each claim once; made by `running`."""

    def __init__(self, node: NodeName, api: Client, store: Store, telemetry: Telemetry) -> None:
        self._node = node
        self._api = api
        self._store = store
        self._telemetry = telemetry
        self._queue: asyncio.Queue[Attempt] = asyncio.Queue(_QUEUE)

    def note(self, attempt: Attempt) -> None:
        """Take an attempt; only the first one of a claim is written."""
        if self._store.root_written(attempt.ref.uid):
            return
        try:
            self._queue.put_nowait(attempt)
        except asyncio.QueueFull:
            self._telemetry.metrics.spans_dropped("queue_full")

    async def write(self) -> None:
        """Write what is noted, for ever."""
        while True:
            attempt = await self._queue.get()
            try:
                if self._write_root(attempt):
                    await self._write_schedule(attempt)
            except DriverError as error:
                LOG.warning("A trace is not whole", claim=str(attempt.ref), error=str(error))

    def finish(self) -> None:
        """Write the roots that still wait, without asking anybody for anything."""
        while not self._queue.empty():
            self._write_root(self._queue.get_nowait())

    def _write_root(self, attempt: Attempt) -> bool:
        """Write the root, unless it is; whether it was us."""
        uid = attempt.ref.uid
        if self._store.root_written(uid):
            return False
        self._telemetry.retroactive(
            "claim",
            trace=identity.trace_id(uid),
            id=identity.claim_root(uid, self._node),
            parent=None,
            start=_created(attempt),
            end=attempt.ended,
            attributes=claim_attributes(attempt.ref),
            links=links(attempt.claim),
            failure=attempt.failure,
        )
        # Told before it is marked: a crash in between loses both, and the next attempt tells.
        self._store.mark_root(uid)
        return True

    async def _write_schedule(self, attempt: Attempt) -> None:
        allocated = await self._allocated(attempt)
        if allocated is not None:
            self._telemetry.retroactive(
                "schedule",
                trace=identity.trace_id(attempt.ref.uid),
                parent=identity.claim_root(attempt.ref.uid, self._node),
                start=_created(attempt),
                end=allocated,
            )

    async def _allocated(self, attempt: Attempt) -> datetime | None:
        """When the scheduler was done: as the claim says, else as its pod says."""
        claim = attempt.claim
        if claim is None or claim.status.allocation is None:
            return None
        if claim.status.allocation.allocation_timestamp is not None:
            return claim.status.allocation.allocation_timestamp
        for consumer in claim.status.reserved_for or ():
            if consumer.resource == "pods":
                return await self._scheduled(claim.metadata.namespace, consumer)
        return None

    async def _scheduled(self, namespace: str, pod: Consumer) -> datetime | None:
        deadline = asyncio.get_running_loop().time() + _LOOKUP_S
        try:
            found = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{pod.name}", deadline)
        except NotFound:
            return None
        for condition in found.get("status", {}).get("conditions") or ():
            is_scheduled = condition.get("type") == "PodScheduled" and condition["status"] == "True"
            if is_scheduled and (moment := condition.get("lastTransitionTime")):
                return datetime.fromisoformat(moment)
        return None


@asynccontextmanager
async def running(
    node: NodeName, api: Client, store: Store, telemetry: Telemetry
) -> AsyncIterator[Roots]:
    """Roots are written while the block runs, and at its end those that wait."""
    roots = Roots(node, api, store, telemetry)
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(roots.write(), name="roots")
        try:
            yield roots
        finally:
            writer.cancel()
    roots.finish()


def links(claim: ResourceClaim | None) -> tuple[Link, ...]:
    """Context that a user put on the claim: linked, never inherited."""
    if claim is None:
        return ()
    link = identity.inbound_link(claim.metadata.annotations.get(names.TRACEPARENT_ANNOTATION))
    return () if link is None else (link,)


def _created(attempt: Attempt) -> datetime:
    created = None if attempt.claim is None else attempt.claim.metadata.creation_timestamp
    return created or attempt.started
