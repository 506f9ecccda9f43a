# SPDX-License-Identifier: Apache-2.0
"""Writes the root span of each claim's trace, and the span `schedule`, once.

They are written after the first attempt on this node, successful or not, so that the trace of a pod
that does not start can be read, too. Writing never delays an answer. The root has a link to the
trace context in the claim's annotations, `schedule` one to that of its pod. The pod is read later,
and only if spans are exported: no other reader can follow a link to another trace.
Source: docs/reference/tracing.md, "Trace identity".
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import AllocationResult, ClaimRef, ResourceClaim

from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process import background_tasks
from nvdra_runtime.telemetry import logs, trace_ids
from nvdra_runtime.telemetry.active_span import failure_of
from nvdra_runtime.telemetry.instrumentation import (
    SpanScope,
    Telemetry,
    claim_attributes,
    claim_trace_and_root,
)
from nvdra_runtime.telemetry.spans import Failure
from nvdra_runtime.telemetry.trace_ids import Link

LOG = logs.logger(__name__)

_QUEUE_SIZE = 1024
"""Attempts that may wait to be written. If the API server hangs, further ones are dropped."""

_LOOKUP_TIMEOUT_S = 5.0
"""How long reading one pod may take."""

_LOOKUP_INTERVAL_S = 0.025
"""Between two pods, so that a burst of claims does not cause a burst of requests."""


_LOST = "A trace lacks spans, because they cannot be written"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The first attempt to prepare a claim on this node.

    Attributes:
        claim: The claim as it was read; None if reading it failed.
        started: When the attempt started.
        ended: When it ended.
        failure: None if the claim is prepared.
    """

    ref: ClaimRef
    claim: ResourceClaim | None
    started: datetime
    ended: datetime
    failure: Failure | None


class RootSpanWriter:
    """Writes the root span of each claim once; created by `running`."""

    def __init__(
        self, node: NodeName, api: Client, store: RecordStore, telemetry: Telemetry
    ) -> None:
        self._node = node
        self._api = api
        self._store = store
        self._telemetry = telemetry
        self._queue: asyncio.Queue[_Attempt] = asyncio.Queue(_QUEUE_SIZE)
        self._pod_lookups: asyncio.Queue[_Attempt] = asyncio.Queue(_QUEUE_SIZE)

    def add(
        self,
        ref: ClaimRef,
        claim: ResourceClaim | None,
        started: datetime,
        ended: datetime,
        error: Exception | None,
    ) -> None:
        """Have the root span written, unless an earlier attempt has done that.

        Args:
            ref: The claim.
            claim: The claim as it was read; None if reading it failed.
            started: When the attempt started.
            ended: When it ended.
            error: Why it failed; None if the claim is prepared.
        """
        if self._store.is_root_span_written(ref.uid):
            return
        failure = None if error is None else failure_of(error)
        attempt = _Attempt(ref, claim, started, ended, failure)
        try:
            self._queue.put_nowait(attempt)
        except asyncio.QueueFull:
            self._telemetry.metrics.spans_dropped("queue_full")

    def operation(self, name: str, ref: ClaimRef, links: tuple[Link, ...]) -> SpanScope:
        """The span of an operation on a claim, below its root span."""
        trace, parent = claim_trace_and_root(ref, self._node)
        return self._telemetry.operation(
            name, trace=trace, parent=parent, attributes=claim_attributes(ref), links=links
        )

    async def run_writer(self) -> None:
        """Write the root spans of the attempts. Run until cancelled."""
        while True:
            attempt = await self._queue.get()
            with background_tasks.contain(_LOST, claim=str(attempt.ref)):
                if self._write_root(attempt) and not self._queue_pod_lookup(attempt):
                    self._write_schedule(attempt, None)

    async def run_pod_lookup(self) -> None:
        """Read the pods of these claims one after the other. Run until cancelled."""
        while True:
            attempt = await self._pod_lookups.get()
            with background_tasks.contain(_LOST, claim=str(attempt.ref)):
                await self._look_up_pod(attempt)
            await asyncio.sleep(_LOOKUP_INTERVAL_S)

    def flush(self) -> None:
        """Write what still waits, without reading pods."""
        while not self._queue.empty():
            attempt = self._queue.get_nowait()
            with background_tasks.contain(_LOST, claim=str(attempt.ref)):
                if self._write_root(attempt):
                    self._write_schedule(attempt, None)
        while not self._pod_lookups.empty():
            attempt = self._pod_lookups.get_nowait()
            with background_tasks.contain(_LOST, claim=str(attempt.ref)):
                self._write_schedule(attempt, None)

    async def _look_up_pod(self, attempt: _Attempt) -> None:
        pod: JsonObject | None = None
        try:
            pod = await self._get_pod(attempt)
        except DriverError as error:
            LOG.info(
                "A trace lacks a span because a pod could not be read",
                claim=str(attempt.ref),
                error=str(error),
            )
        finally:  # also if the process stops meanwhile, then without the pod
            self._write_schedule(attempt, pod)

    def _write_root(self, attempt: _Attempt) -> bool:
        """Write the root span. Returns False if that has been done before."""
        uid = attempt.ref.uid
        if self._store.is_root_span_written(uid):
            return False
        annotations = {} if attempt.claim is None else attempt.claim.metadata.annotations
        self._telemetry.write_finished_span(
            "claim",
            trace=trace_ids.trace_id(uid),
            id=trace_ids.claim_root_span_id(uid, self._node),
            parent=None,
            start=_created(attempt),
            end=attempt.ended,
            attributes=claim_attributes(attempt.ref),
            links=_annotation_links(annotations),
            failure=attempt.failure,
        )
        # It is marked afterwards: a crash in between loses both, and the next attempt writes it.
        self._store.mark_root_span_written(uid)
        return True

    def _write_schedule(self, attempt: _Attempt, pod: JsonObject | None) -> None:
        """Write `schedule`, which ends when the claim is allocated or else its pod is scheduled."""
        allocation = _allocation(attempt)
        if allocation is None:
            return
        allocated = (
            allocation.allocation_timestamp or _scheduled(pod) or _status_written(attempt.claim)
        )
        if allocated is None:
            return
        annotations = {} if pod is None else pod["metadata"].get("annotations", {})
        self._telemetry.write_finished_span(
            "schedule",
            trace=trace_ids.trace_id(attempt.ref.uid),
            parent=trace_ids.claim_root_span_id(attempt.ref.uid, self._node),
            start=_created(attempt),
            end=allocated,
            links=_annotation_links(annotations),
        )

    def _queue_pod_lookup(self, attempt: _Attempt) -> bool:
        """Have the claim's pod read, if that adds to the trace. Returns whether it will be.

        The pod's trace context is a link to another trace, which is of use only in a trace backend.
        """
        if _allocation(attempt) is None or not self._telemetry.is_exporting:
            return False
        try:
            self._pod_lookups.put_nowait(attempt)
        except asyncio.QueueFull:
            return False
        return True

    async def _get_pod(self, attempt: _Attempt) -> JsonObject | None:
        """The first pod that the claim is reserved for; None if it does not exist any more."""
        claim = attempt.claim
        consumers = (claim.status.reserved_for or ()) if claim else ()
        pod = next((consumer for consumer in consumers if consumer.resource == "pods"), None)
        if claim is None or pod is None:
            return None
        deadline = asyncio.get_running_loop().time() + _LOOKUP_TIMEOUT_S
        path = f"/api/v1/namespaces/{claim.metadata.namespace}/pods/{pod.name}"
        try:
            found = await self._api.get(path, deadline)
        except NotFound:
            return None
        return found if found["metadata"].get("uid") == pod.uid else None


@asynccontextmanager
async def running(
    node: NodeName, api: Client, store: RecordStore, telemetry: Telemetry
) -> AsyncIterator[RootSpanWriter]:
    """Write root spans while the block runs, and at its end those that still wait."""
    writer = RootSpanWriter(node, api, store, telemetry)
    async with background_tasks.running(
        root_spans=writer.run_writer, pods_of_root_spans=writer.run_pod_lookup
    ):
        yield writer
    writer.flush()


def _annotation_links(annotations: Mapping[str, str]) -> tuple[Link, ...]:
    """Link to the trace context in an object's annotations. It is not used as a parent."""
    link = trace_ids.link_from_traceparent(annotations.get(names.TRACEPARENT_ANNOTATION))
    return () if link is None else (link,)


def _allocation(attempt: _Attempt) -> AllocationResult | None:
    return None if attempt.claim is None else attempt.claim.status.allocation


def _scheduled(pod: JsonObject | None) -> datetime | None:
    """When the pod was scheduled."""
    for condition in (pod or {}).get("status", {}).get("conditions") or ():
        is_scheduled = condition.get("type") == "PodScheduled" and condition["status"] == "True"
        if is_scheduled and (moment := condition.get("lastTransitionTime")):
            return datetime.fromisoformat(moment)
    return None


def _status_written(claim: ResourceClaim | None) -> datetime | None:
    """When the claim's allocation was written.

    `allocationTimestamp` is behind a gate before 1.36. This time has whole seconds, and is that of
    the latest reservation if several pods share the claim.
    """
    for entry in () if claim is None else claim.metadata.managed_fields:
        is_owner = "f:allocation" in (entry.get("fieldsV1") or {}).get("f:status", {})
        if is_owner and (moment := entry.get("time")):
            return datetime.fromisoformat(moment)
    return None


def _created(attempt: _Attempt) -> datetime:
    created = None if attempt.claim is None else attempt.claim.metadata.creation_timestamp
    return created or attempt.started
