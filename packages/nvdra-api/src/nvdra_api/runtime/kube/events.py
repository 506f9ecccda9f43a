"""Kubernetes Events about claims, pods and nodes: what `kubectl describe` shows.

Fire and forget: `emit` puts into a bounded queue and returns; a loop writes. What cannot be written
is dropped and counted, never waited for. Repeats of the same reason on the same object are counted
in one Event, written at most once a minute. Source: spec/tracing.md §4.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from nvdra_api.protocol.aggregation import INTERVAL_S, Aggregator, Series
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import NotFound
from nvdra_api.types.claims import ResourceClaim
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import NodeName, TraceID
from nvdra_api.types.names import RESOURCE_GROUP, TRACE_ANNOTATION

_log = logging.getLogger(__name__)

_CALL_S: Final = 5.0
_QUEUE: Final = 256
_LONGEST_MESSAGE: Final = 1024
"""Bytes; the API server rejects longer ones."""

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that an Event is about."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


class _Key(NamedTuple):
    subject: Subject
    type: EventType
    reason: str


class _Story(NamedTuple):
    message: str
    trace: TraceID | None


def claim_subjects(claim: ResourceClaim) -> tuple[Subject, ...]:
    """The claim and every pod in its `reservedFor`: who looks at one finds the Event."""
    metadata = claim.metadata
    pods = tuple(
        Subject("v1", "Pod", consumer.name, consumer.uid, metadata.namespace)
        for consumer in claim.status.reserved_for or ()
        if consumer.resource == "pods" and not consumer.api_group
    )
    itself = Subject(
        f"{RESOURCE_GROUP}/v1", "ResourceClaim", metadata.name, metadata.uid, metadata.namespace
    )
    return (itself, *pods)


def node_subject(node: NodeName) -> Subject:
    """The Node; its Events carry its name for a UID, as the kubelet's do and `describe` expects."""
    return Subject("v1", "Node", node, node)


class Events:
    """Writes Events for one component on one node."""

    def __init__(
        self,
        api: Client,
        component: str,
        node: NodeName,
        now: Callable[[], datetime],
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Prepare to write; `running` does it.

        Args:
            api: The API server.
            component: Who reports, such as `gpu.nvidia.com`.
            node: Where.
            now: The time of day, in UTC.
            interval_s: Shortest time between two reports of the same thing.
        """
        self._api = api
        self._component = component
        self._node = node
        self._now = now
        self._queue: asyncio.Queue[tuple[_Key, _Story]] = asyncio.Queue(_QUEUE)
        self._aggregator: Aggregator[_Key, _Story] = Aggregator(interval_s)
        self._names: dict[_Key, str] = {}
        self.dropped = 0
        """Events that were never written: the queue was full, or the API server refused."""

    def emit(
        self,
        subjects: tuple[Subject, ...],
        type_: EventType,
        reason: str,
        message: str,
        trace: TraceID | None = None,
    ) -> None:
        """Report something about each subject; returns at once."""
        story = _Story(message, trace)
        for subject in subjects:
            try:
                self._queue.put_nowait((_Key(subject, type_, reason), story))
            except asyncio.QueueFull:
                self.dropped += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Events"]:
        """Write until the block is left; what is queued then is written as far as 2 s allow."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._run(), name="events")
            try:
                yield self
            finally:
                await self._drain()
                task.cancel()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._queue.join()
        except TimeoutError:
            self.dropped += self._queue.qsize()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(self._aggregator.next_due()):
                    key, story = await self._queue.get()
            except TimeoutError:
                for due, series in self._aggregator.due(loop.time()).items():
                    await self._report(due, series)
                continue
            first = self._aggregator.happened(key, story, loop.time())
            if first is not None:
                await self._report(key, first)
            self._queue.task_done()

    async def _report(self, key: _Key, series: Series[_Story]) -> None:
        try:
            await self._write(key, series)
        except DriverError as error:
            self.dropped += 1
            _log.info("an event was not written reason=%s error=%s", key.reason, error)

    async def _write(self, key: _Key, series: Series[_Story]) -> None:
        """Create the Event, or bring the one we wrote up to date."""
        collection = f"/api/v1/namespaces/{key.subject.namespace or 'default'}/events"
        deadline = asyncio.get_running_loop().time() + _CALL_S
        name = self._names.get(key) if series.count > 1 else None
        if name is not None:
            changes = {
                "count": series.count,
                "lastTimestamp": _timestamp(self._now()),
                "message": _fitting(series.latest.message),
                "metadata": {"annotations": _annotations(series.latest)},
            }
            try:
                await self._api.patch(f"{collection}/{name}", changes, deadline)
                return
            except NotFound:
                _log.debug("the event has expired and is made anew event=%s", name)
        created = await self._api.create(collection, self._event(key, series), deadline)
        self._names = {k: n for k, n in self._names.items() if k in self._aggregator}
        self._names[key] = created["metadata"]["name"]

    def _event(self, key: _Key, series: Series[_Story]) -> JsonObject:
        subject, now = key.subject, _timestamp(self._now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                # As client-go names them: the object's name, and something to keep them apart.
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
            "message": _fitting(series.latest.message),
            "count": series.count,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
        }


def _annotations(story: _Story) -> dict[str, str]:
    return {TRACE_ANNOTATION: story.trace} if story.trace else {}


def _timestamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _fitting(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _LONGEST_MESSAGE:
        return message
    return encoded[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"
