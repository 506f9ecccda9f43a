# SPDX-License-Identifier: Apache-2.0
"""Records Kubernetes Events about claims, pods and nodes, which `kubectl describe` shows.

`emit` adds to a bounded queue and returns; a loop writes. A failed write is retried for ten
minutes; lost Events are counted. Repeats of the same reason on the same object, and about the same
thing, are counted in one Event, which is written at most once a minute.
Source: docs/reference/tracing.md, "Events".
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from nvdra_api import texts
from nvdra_api.errors import DriverError, PermanentError
from nvdra_api.ids import NodeName, TraceID
from nvdra_api.meta import JsonObject
from nvdra_api.names import RESOURCE_GROUP, TRACE_ANNOTATION
from nvdra_api.resource.claims import ClaimRef, ResourceClaim

from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import NotFound
from nvdra_runtime.kube.event_aggregation import INTERVAL_S, EventAggregator, EventSeries
from nvdra_runtime.process import background_tasks, log_records

LOG = log_records.logger(__name__)

_CALL_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 2.0
_QUEUE_SIZE: Final = 256
_MAX_MESSAGE_BYTES: Final = 1024
"""The API server rejects longer messages."""

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an Event is about."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


class _Key(NamedTuple):
    involved_object: ObjectReference
    type: EventType
    reason: str
    about: str


class _Occurrence(NamedTuple):
    message: str
    trace: TraceID | None
    at: datetime
    claim: ClaimRef | None
    """The claim, if its pods have yet to be read and get the Event, too."""


def claim_and_pod_references(claim: ResourceClaim) -> tuple[ObjectReference, ...]:
    """References to the claim and to every pod in its `reservedFor`."""
    metadata = claim.metadata
    pods = tuple(
        ObjectReference("v1", "Pod", consumer.name, consumer.uid, metadata.namespace)
        for consumer in claim.status.reserved_for or ()
        if consumer.resource == "pods" and not consumer.api_group
    )
    return (claim_reference(claim.ref), *pods)


def claim_reference(ref: ClaimRef) -> ObjectReference:
    """A reference to the claim, which need not have been read."""
    return ObjectReference(
        f"{RESOURCE_GROUP}/v1", "ResourceClaim", ref.name, ref.uid, ref.namespace
    )


def node_reference(node: NodeName) -> ObjectReference:
    """A reference to the Node. The UID is its name, as in the kubelet's Events."""
    return ObjectReference("v1", "Node", node, node)


class EventRecorder:
    """Writes Events for one component on one node.

    Attributes:
        dropped: Events that were never written: the queue was full, or the API server refused.
    """

    def __init__(
        self,
        api: Client,
        component: str,
        node: NodeName,
        now: Callable[[], datetime],
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Create a recorder. `running` writes the Events.

        Args:
            api: The API server.
            component: The reporting component, such as `gpu.nvidia.com`.
            node: The reporting node.
            now: Returns the wall-clock time in UTC.
            interval_s: Minimum time between two writes of the same Event.
        """
        self._api = api
        self._component = component
        self._node = node
        self._now = now
        self._queue: asyncio.Queue[tuple[_Key, _Occurrence]] = asyncio.Queue(_QUEUE_SIZE)
        self._aggregator: EventAggregator[_Key, _Occurrence] = EventAggregator(interval_s)
        self._names: dict[_Key, str] = {}
        self._is_idle = asyncio.Event()
        self.dropped = 0

    def emit(
        self,
        objects: tuple[ObjectReference, ...],
        type_: EventType,
        reason: str,
        message: str,
        trace: TraceID | None = None,
        about: str = "",
    ) -> None:
        """Record an Event about each object. Returns at once.

        Args:
            objects: The objects; each has an Event of its own.
            type_: Warning or Normal.
            reason: One word.
            message: What happened, since when, and what to do.
            trace: The trace that the Event belongs to.
            about: Which of several things of the object this is about, such as a GPU of a node. Of
                each thing the last message stays.
        """
        story = _Occurrence(message, trace, self._now(), None)
        for subject in objects:
            self._enqueue(_Key(subject, type_, reason, about), story)

    def emit_for_claim(
        self,
        ref: ClaimRef,
        claim: ResourceClaim | None,
        type_: EventType,
        reason: str,
        message: str,
        trace: TraceID | None = None,
        about: str = "",
    ) -> None:
        """Record an Event about a claim and its pods. Returns at once.

        A pod may have several claims: each has Events of its own.

        Args:
            ref: The claim.
            claim: The claim as read; if it is None, the loop reads it to find the pods.
            type_: Warning or Normal.
            reason: One word.
            message: What happened, since when, and what to do.
            trace: The trace of the claim.
            about: As for `emit`, which of several things of the claim.
        """
        about = f"{ref.uid} {about}".rstrip()
        if claim is not None:
            subjects = claim_and_pod_references(claim)
            self.emit(subjects, type_, reason, message, trace, about=about)
            return
        key = _Key(claim_reference(ref), type_, reason, about)
        self._enqueue(key, _Occurrence(message, trace, self._now(), ref))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["EventRecorder"]:
        """Write Events while the block runs. The due ones are written at its end, within 2 s."""
        async with background_tasks.running(events=self._run):
            try:
                yield self
            finally:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_idle.wait(), _CLOSE_TIMEOUT_S)

    def _enqueue(self, key: _Key, occurrence: _Occurrence) -> None:
        try:
            self._queue.put_nowait((key, occurrence))
            self._is_idle.clear()
        except asyncio.QueueFull:
            self.dropped += 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._queue.empty():
                self._aggregate(*self._queue.get_nowait())
            due = self._aggregator.due(loop.time())
            if due is not None:
                key, series = due
                with background_tasks.contain(
                    "An event cannot be written", reason=key.reason
                ) as contained:
                    await self._write_due(key, series)
                if contained.error is not None:  # it would fail again, before all others
                    self._aggregator.discard(key)
                    self.dropped += 1
                continue
            self._is_idle.set()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._aggregator.next_due_at()):
                    self._aggregate(*await self._queue.get())

    def _aggregate(self, key: _Key, occurrence: _Occurrence) -> None:
        now = asyncio.get_running_loop().time()
        self.dropped += self._aggregator.add_occurrence(key, occurrence, now)

    async def _write_due(self, key: _Key, series: EventSeries[_Occurrence]) -> None:
        loop = asyncio.get_running_loop()
        story = series.latest
        try:
            pods = await self._find_pods(story.claim) if story.claim else ()
            await self._write(key, series)
        except PermanentError as error:
            self._aggregator.discard(key)
            self._drop(key, error)
        except DriverError as error:
            if not self._aggregator.mark_failed(key, loop.time()):
                self._drop(key, error)
        else:
            self._aggregator.mark_reported(key, series.count, loop.time())
            for pod in pods:
                self._aggregate(key._replace(involved_object=pod), story._replace(claim=None))

    async def _find_pods(self, ref: ClaimRef) -> tuple[ObjectReference, ...]:
        """Read a claim to find its pods."""
        try:
            claim = await self._api.get_claim(
                ref, asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
            )
        except PermanentError:
            return ()  # the claim is gone, so its pods are unknown
        return claim_and_pod_references(claim)[1:]

    def _drop(self, key: _Key, error: DriverError) -> None:
        self.dropped += 1
        LOG.info("Cannot write an event", reason=key.reason, error=str(error))

    async def _write(self, key: _Key, series: EventSeries[_Occurrence]) -> None:
        """Create the Event, or update the one that we wrote before."""
        collection = f"/api/v1/namespaces/{key.involved_object.namespace or 'default'}/events"
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT_S
        name = self._names.get(key) if series.reported_count else None
        if name is not None:
            changes = {
                "count": series.count,
                "lastTimestamp": _timestamp(series.latest.at),
                "message": _truncate(series.latest.message),
                "metadata": {"annotations": _annotations(series.latest)},
            }
            try:
                await self._api.patch(f"{collection}/{name}", changes, deadline)
                return
            except NotFound:
                LOG.v(6, "The event has expired and is created again", event=name)
        created = await self._api.create(collection, self._build_event(key, series), deadline)
        self._names = {k: n for k, n in self._names.items() if k in self._aggregator}
        self._names[key] = created["metadata"]["name"]

    def _build_event(self, key: _Key, series: EventSeries[_Occurrence]) -> JsonObject:
        subject = key.involved_object
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                # client-go's form: the object's name and a unique suffix.
                "name": f"{subject.name[:230]}.{secrets.token_hex(8)}",
                "namespace": subject.namespace or "default",
                "annotations": _annotations(series.latest),
            },
            "involvedObject": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                "name": subject.name,
                "uid": subject.uid,
                **({"namespace": subject.namespace} if subject.namespace else {}),
            },
            "type": key.type,
            "reason": key.reason,
            "message": _truncate(series.latest.message),
            "count": series.count,
            "firstTimestamp": _timestamp(series.first.at),
            "lastTimestamp": _timestamp(series.latest.at),
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
        }


def _annotations(occurrence: _Occurrence) -> dict[str, str]:
    return {TRACE_ANNOTATION: occurrence.trace} if occurrence.trace else {}


def _timestamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _truncate(message: str) -> str:
    message = texts.encodable(message)
    encoded = message.encode()
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return message
    return encoded[: _MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
