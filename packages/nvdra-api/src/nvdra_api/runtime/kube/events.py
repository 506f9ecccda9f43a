"""Kubernetes Events about claims, pods and nodes: what `kubectl describe` shows.

Fire and forget: `emit` puts into a bounded queue and returns; a loop writes. What the API server
does not take now is tried again for ten minutes; what is lost is counted, and nobody ever waits.
Repeats of the same reason on the same object are counted in one Event, written at most once a
minute. Source: spec/tracing.md §4.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from nvdra_api.protocol.aggregation import INTERVAL_S, Aggregator, Series
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import NotFound
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import DriverError, PermanentError
from nvdra_api.types.ids import NodeName, TraceID
from nvdra_api.types.names import RESOURCE_GROUP, TRACE_ANNOTATION

_log = logging.getLogger(__name__)

_CALL_S: Final = 5.0
_CLOSE_S: Final = 2.0
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
    at: datetime
    claim: ClaimRef | None
    """The subject, where its pods are still to be found out and told as well."""


def claim_subjects(claim: ResourceClaim) -> tuple[Subject, ...]:
    """The claim and every pod in its `reservedFor`: who looks at one finds the Event."""
    metadata = claim.metadata
    pods = tuple(
        Subject("v1", "Pod", consumer.name, consumer.uid, metadata.namespace)
        for consumer in claim.status.reserved_for or ()
        if consumer.resource == "pods" and not consumer.api_group
    )
    return (claim_subject(claim.ref), *pods)


def claim_subject(ref: ClaimRef) -> Subject:
    """The claim alone, also one that nobody has read."""
    return Subject(f"{RESOURCE_GROUP}/v1", "ResourceClaim", ref.name, ref.uid, ref.namespace)


def node_subject(node: NodeName) -> Subject:
    """The Node; its Events carry its name for a UID, as the kubelet's do and `describe` expects."""
    return Subject("v1", "Node", node, node)


class Events:
    """Writes Events for one component on one node.

    Attributes:
        dropped: Events that were never written: too many at once, or the API server takes none.
    """

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
        self._is_settled = asyncio.Event()
        self.dropped = 0

    def emit(
        self,
        subjects: tuple[Subject, ...],
        type_: EventType,
        reason: str,
        message: str,
        trace: TraceID | None = None,
    ) -> None:
        """Report something about each subject; returns at once."""
        story = _Story(message, trace, self._now(), None)
        for subject in subjects:
            self._take(_Key(subject, type_, reason), story)

    def emit_for(
        self,
        ref: ClaimRef,
        claim: ResourceClaim | None,
        type_: EventType,
        reason: str,
        message: str,
        trace: TraceID | None = None,
    ) -> None:
        """Report something about a claim and its pods; returns at once.

        Args:
            ref: The claim.
            claim: As read; where it is None, the pods are found out before they are told.
            type_: Warning or Normal.
            reason: One word.
            message: What, since when, what to do.
            trace: To look up.
        """
        if claim is not None:
            self.emit(claim_subjects(claim), type_, reason, message, trace)
            return
        self._take(
            _Key(claim_subject(ref), type_, reason), _Story(message, trace, self._now(), ref)
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Events"]:
        """Write until the block is left; what is due then is written as far as 2 s allow."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._run(), name="events")
            try:
                yield self
            finally:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_settled.wait(), _CLOSE_S)
                task.cancel()

    def _take(self, key: _Key, story: _Story) -> None:
        try:
            self._queue.put_nowait((key, story))
            self._is_settled.clear()
        except asyncio.QueueFull:
            self.dropped += 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._queue.empty():
                self._count(*self._queue.get_nowait())
            due = self._aggregator.due(loop.time())
            if due is not None:
                await self._report(*due)
                continue
            self._is_settled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._aggregator.next_due()):
                    self._count(*await self._queue.get())

    def _count(self, key: _Key, story: _Story) -> None:
        now = asyncio.get_running_loop().time()
        self.dropped += self._aggregator.happened(key, story, now)

    async def _report(self, key: _Key, series: Series[_Story]) -> None:
        loop = asyncio.get_running_loop()
        story = series.latest
        try:
            pods = await self._pods(story.claim) if story.claim else ()
            await self._write(key, series)
        except PermanentError as error:
            self._aggregator.give_up(key)
            self._lose(key, error)
        except DriverError as error:
            if not self._aggregator.failed(key, loop.time()):
                self._lose(key, error)
        else:
            self._aggregator.told(key, series.count, loop.time())
            for pod in pods:
                self._count(key._replace(subject=pod), story._replace(claim=None))

    async def _pods(self, ref: ClaimRef) -> tuple[Subject, ...]:
        """The pods of a claim that nobody had read when there was something to tell of it."""
        try:
            claim = await self._api.claim(ref, asyncio.get_running_loop().time() + _CALL_S)
        except PermanentError:
            return ()  # the claim is gone: nobody can tell whose it was
        return claim_subjects(claim)[1:]

    def _lose(self, key: _Key, error: DriverError) -> None:
        self.dropped += 1
        _log.info("an event was not written reason=%s error=%s", key.reason, error)

    async def _write(self, key: _Key, series: Series[_Story]) -> None:
        """Create the Event, or bring the one we wrote up to date."""
        collection = f"/api/v1/namespaces/{key.subject.namespace or 'default'}/events"
        deadline = asyncio.get_running_loop().time() + _CALL_S
        name = self._names.get(key) if series.told else None
        if name is not None:
            changes = {
                "count": series.count,
                "lastTimestamp": _timestamp(series.latest.at),
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
        subject = key.subject
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
            "firstTimestamp": _timestamp(series.first.at),
            "lastTimestamp": _timestamp(series.latest.at),
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
