"""The root of a claim's trace and the wait in the scheduler: written after the fact, once.

At the end of the first attempt on this node, successful or not, so that a stuck pod has its trace.
It happens behind the answer and never delays one. Context that a user put on the claim is linked
from the root, context on its pod from `schedule`: the pod is asked for later, at leisure, and only
where it tells something.
Source: spec/tracing.md §1.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from nvdra_api.protocol import identity
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.protocol.identity import Link
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import NotFound
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.process import background
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.active import failure_of
from nvdra_api.runtime.telemetry.spans import Failure
from nvdra_api.runtime.telemetry.traces import Telemetry, claim_attributes
from nvdra_api.types import names
from nvdra_api.types.claims import Allocation, ClaimRef, ResourceClaim
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import NodeName

LOG = logs.logger(__name__)

_QUEUE = 1024
"""Roots that may wait to be written; beyond it (an API server that hangs) the newest are let go."""

_LOOKUP_S = 5.0
"""How long one pod is asked for."""

_PACE_S = 0.025
"""Between two pods: a burst of claims must not become a burst of requests behind it."""


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
        self._rooted: asyncio.Queue[Attempt] = asyncio.Queue(_QUEUE)

    def note(self, attempt: Attempt) -> None:
        """Take an attempt; only the first one of a claim is written."""
        if self._store.root_written(attempt.ref.uid):
            return
        try:
            self._queue.put_nowait(attempt)
        except asyncio.QueueFull:
            self._telemetry.metrics.spans_dropped("queue_full")

    async def write(self) -> None:
        """Write the roots of what is noted, for ever."""
        while True:
            attempt = await self._queue.get()
            if self._write_root(attempt) and not self._ask_for_pod(attempt):
                self._write_schedule(attempt, None)

    async def look_up(self) -> None:
        """Find out what the pods of those claims tell, one after the other, for ever."""
        while True:
            attempt = await self._rooted.get()
            pod: JsonObject | None = None
            try:
                pod = await self._pod(attempt)
            except DriverError as error:
                LOG.info("A trace is not whole", claim=str(attempt.ref), error=str(error))
            self._write_schedule(attempt, pod)
            await asyncio.sleep(_PACE_S)

    def finish(self) -> None:
        """Write what still waits, without asking anybody for anything."""
        while not self._queue.empty():
            attempt = self._queue.get_nowait()
            if self._write_root(attempt):
                self._write_schedule(attempt, None)
        while not self._rooted.empty():
            self._write_schedule(self._rooted.get_nowait(), None)

    def _write_root(self, attempt: Attempt) -> bool:
        """Write the root, unless it is; whether it was us."""
        uid = attempt.ref.uid
        if self._store.root_written(uid):
            return False
        annotations = {} if attempt.claim is None else attempt.claim.metadata.annotations
        self._telemetry.retroactive(
            "claim",
            trace=identity.trace_id(uid),
            id=identity.claim_root(uid, self._node),
            parent=None,
            start=_created(attempt),
            end=attempt.ended,
            attributes=claim_attributes(attempt.ref),
            links=links(annotations),
            failure=attempt.failure,
        )
        # Told before it is marked: a crash in between loses both, and the next attempt tells.
        self._store.mark_root(uid)
        return True

    def _write_schedule(self, attempt: Attempt, pod: JsonObject | None) -> None:
        """The wait in the scheduler: until the claim was allocated, or else the pod scheduled."""
        allocation = _allocation(attempt)
        if allocation is None:
            return
        allocated = allocation.allocation_timestamp or _scheduled(pod)
        if allocated is None:
            return
        annotations = {} if pod is None else pod["metadata"].get("annotations", {})
        self._telemetry.retroactive(
            "schedule",
            trace=identity.trace_id(attempt.ref.uid),
            parent=identity.claim_root(attempt.ref.uid, self._node),
            start=_created(attempt),
            end=allocated,
            links=links(annotations),
        )

    def _ask_for_pod(self, attempt: Attempt) -> bool:
        """Have the pod asked for, if that tells anything; whether it will be.

        Its context is a link into somebody's backend, so of use only where spans are sent to one.
        """
        allocation = _allocation(attempt)
        if allocation is None:
            return False
        if allocation.allocation_timestamp and not self._telemetry.is_exporting:
            return False
        try:
            self._rooted.put_nowait(attempt)
        except asyncio.QueueFull:
            return False
        return True

    async def _pod(self, attempt: Attempt) -> JsonObject | None:
        """The first pod that the claim is for, if it still is the one that is meant."""
        claim = attempt.claim
        consumers = (claim.status.reserved_for or ()) if claim else ()
        pod = next((each for each in consumers if each.resource == "pods"), None)
        if claim is None or pod is None:
            return None
        deadline = asyncio.get_running_loop().time() + _LOOKUP_S
        path = f"/api/v1/namespaces/{claim.metadata.namespace}/pods/{pod.name}"
        try:
            found = await self._api.get(path, deadline)
        except NotFound:
            return None
        return found if found["metadata"].get("uid") == pod.uid else None


@asynccontextmanager
async def running(
    node: NodeName, api: Client, store: Store, telemetry: Telemetry
) -> AsyncIterator[Roots]:
    """Roots are written while the block runs, and at its end those that wait."""
    roots = Roots(node, api, store, telemetry)
    async with background.tasks(roots=roots.write(), pods_of_roots=roots.look_up()):
        yield roots
    roots.finish()


def links(annotations: Mapping[str, str]) -> tuple[Link, ...]:
    """Context that a user put on an object: linked, never inherited."""
    link = identity.inbound_link(annotations.get(names.TRACEPARENT_ANNOTATION))
    return () if link is None else (link,)


def _allocation(attempt: Attempt) -> Allocation | None:
    return None if attempt.claim is None else attempt.claim.status.allocation


def _scheduled(pod: JsonObject | None) -> datetime | None:
    """When the pod was given its node."""
    for condition in (pod or {}).get("status", {}).get("conditions") or ():
        is_scheduled = condition.get("type") == "PodScheduled" and condition["status"] == "True"
        if is_scheduled and (moment := condition.get("lastTransitionTime")):
            return datetime.fromisoformat(moment)
    return None


def _created(attempt: Attempt) -> datetime:
    created = None if attempt.claim is None else attempt.claim.metadata.creation_timestamp
    return created or attempt.started
