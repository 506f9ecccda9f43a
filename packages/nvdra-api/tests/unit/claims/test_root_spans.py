# SPDX-License-Identifier: Apache-2.0
"""The root span of each claim's trace: written once, with the schedule below it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID, NodeName, SpanID, TraceID
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.claims import root_spans
from nvdra_runtime.claims.root_spans import RootSpanWriter
from nvdra_runtime.kube.client import Client, KubeSettings
from nvdra_runtime.kube.connection import JSON, Connection
from nvdra_runtime.kube.errors import NotFound
from nvdra_runtime.kube.rate_limiter import RateLimiter
from nvdra_runtime.kube.request_observer import ignore_request
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.telemetry import instrumentation, trace_ids
from nvdra_runtime.telemetry.export.otel_settings import SpanExportSettings
from nvdra_runtime.telemetry.export.span_export import SpanExportQueue
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.keys import Outcome
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_runtime.telemetry.spans import Failure, Span
from nvdra_runtime.telemetry.trace_ids import Link

NODE = NodeName("node-a")
REF = ClaimRef("ml", "train", ClaimUID("3f0c1a52-7c1b-4d0e-8a55-0123456789ab"))
ROOT = trace_ids.claim_root_span_id(REF.uid, NODE)

CREATED = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
SCHEDULED = CREATED + timedelta(seconds=2)
ALLOCATED = CREATED + timedelta(seconds=3)
STARTED = CREATED + timedelta(seconds=5)
ENDED = CREATED + timedelta(seconds=6)

POD_PATH = "/api/v1/namespaces/ml/pods/train-0"
POD: JsonObject = {
    "metadata": {"name": "train-0", "uid": "pod-uid"},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-05T12:00:09Z"},
            {
                "type": "PodScheduled",
                "status": "True",
                "lastTransitionTime": "2026-11-05T12:00:02Z",
            },
        ]
    },
}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "lastTransitionTime": "2026-11-05T12:00:01Z",
}
COLLECTOR = SpanExportSettings("http://127.0.0.1:9/v1/traces")
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
LINK = Link(TraceID("a" * 32), SpanID("b" * 16), "inbound")


class Clock:
    """Time that stands still."""

    def now(self) -> datetime:
        return ENDED

    def monotonic(self) -> float:
        return 100.0


class Api(Client):
    """An API server that has one pod, or an error."""

    def __init__(self) -> None:
        super().__init__(Connection(KubeSettings()), RateLimiter(1, 1), ignore_request)
        self.pod: JsonObject | Exception = POD
        self.is_hanging = False
        self.read: list[str] = []
        self.waits_s: list[float] = []

    async def get(
        self,
        path: str,
        deadline: float,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> JsonObject:
        self.read.append(path)
        self.waits_s.append(deadline - asyncio.get_running_loop().time())
        if self.is_hanging:
            await asyncio.Event().wait()
        if isinstance(self.pod, Exception):
            raise self.pod
        return self.pod


class Node:
    """A node with its state file and the traces that it has written."""

    def __init__(self, store: RecordStore, *, is_exporting: bool = False) -> None:
        self.store = store
        self.api = Api()
        metrics = PluginMetrics(driver="d", node=NODE)
        # The recorder keeps all spans; of those for the collector none is sampled.
        queue = SpanExportQueue(COLLECTOR, 0.0, {}, metrics) if is_exporting else None
        self.queue = queue
        self.telemetry = Telemetry(Clock(), metrics, TraceRecorder(), queue)
        self.writer = RootSpanWriter(NODE, self.api, store, self.telemetry)

    def spans(self, ref: ClaimRef = REF) -> dict[str, Span]:
        trace = self.telemetry.recorder.trace(trace_ids.trace_id(ref.uid))
        found = () if trace is None else trace.spans
        assert len({span.name for span in found}) == len(found)
        return {span.name: span for span in found}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RootSpanWriter]:
        async with root_spans.running(NODE, self.api, self.store, self.telemetry) as writer:
            yield writer


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose traces are on its debug endpoint only."""
    async with RecordStore.open(tmp_path / "state.sqlite", "boot", Clock()) as store:
        yield Node(store)


@pytest.fixture
async def exporting(tmp_path: Path) -> AsyncIterator[Node]:
    """A node that exports its spans."""
    async with RecordStore.open(tmp_path / "state.sqlite", "boot", Clock()) as store:
        node = Node(store, is_exporting=True)
        yield node
        assert node.queue is not None
        node.queue.shutdown()


def claim(
    allocation: Mapping[str, Any] | None = None,
    managed_fields: Sequence[Mapping[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
) -> ResourceClaim:
    """A claim that pod train-0 uses; without an argument it is not allocated."""
    status: dict[str, Any] = {
        "reservedFor": [
            {"resource": "jobs", "name": "other", "uid": "job-uid"},
            {"resource": "pods", "name": "train-0", "uid": "pod-uid"},
        ]
    }
    if allocation is not None:
        status["allocation"] = allocation
    return ResourceClaim.model_validate(
        {
            "metadata": {
                "namespace": REF.namespace,
                "name": REF.name,
                "uid": REF.uid,
                "creationTimestamp": CREATED.isoformat(),
                "annotations": dict(annotations or {}),
                "managedFields": list(managed_fields),
            },
            "status": status,
        }
    )


UNALLOCATED = claim()
WITH_TIME = claim({"allocationTimestamp": ALLOCATED.isoformat()})
WITHOUT_TIME = claim({})


async def settle() -> None:
    """Let the tasks run until they wait for something else than each other."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_prepared_claim_has_one_root_from_its_creation_to_the_end_of_the_attempt(
    node: Node,
) -> None:
    node.writer.add(REF, UNALLOCATED, STARTED, ENDED, None)
    node.writer.flush()
    (root,) = node.spans().values()
    assert (root.name, root.id, root.parent, root.failure) == ("claim", ROOT, None, None)
    assert (root.start_ns, root.end_ns) == (
        CREATED.timestamp() * 1e9,
        ENDED.timestamp() * 1e9,
    )
    assert root.attributes == instrumentation.claim_attributes(REF)
    assert root.links == ()


async def test_a_failed_attempt_is_the_failure_of_the_root(node: Node) -> None:
    error = RetryableError(Reason.LOCK_TIMEOUT, "gpu-0 is busy", "wait")
    node.writer.add(REF, UNALLOCATED, STARTED, ENDED, error)
    node.writer.flush()
    failure = node.spans()["claim"].failure
    assert failure == Failure(Outcome.RETRYABLE, "LockTimeout", "gpu-0 is busy; wait")


async def test_a_claim_that_could_not_be_read_has_a_root_from_the_start_of_the_attempt(
    node: Node,
) -> None:
    node.writer.add(REF, None, STARTED, ENDED, RetryableError(Reason.API_UNAVAILABLE, "no answer"))
    node.writer.flush()
    (root,) = node.spans().values()
    assert root.start_ns == STARTED.timestamp() * 1e9


async def test_the_trace_context_of_the_claim_is_a_link_and_no_parent(node: Node) -> None:
    annotated = claim(annotations={names.TRACEPARENT_ANNOTATION: TRACEPARENT})
    node.writer.add(REF, annotated, STARTED, ENDED, None)
    node.writer.flush()
    root = node.spans()["claim"]
    assert (root.links, root.parent) == ((LINK,), None)


async def test_only_the_first_attempt_is_written(node: Node) -> None:
    error = RetryableError(Reason.LOCK_TIMEOUT, "later")
    node.writer.add(REF, UNALLOCATED, STARTED, ENDED, error)
    node.writer.add(REF, UNALLOCATED, STARTED, ENDED + timedelta(seconds=1), None)
    node.writer.flush()
    node.writer.add(REF, UNALLOCATED, STARTED, ENDED + timedelta(seconds=2), None)
    node.writer.flush()
    assert node.spans()["claim"].failure is not None


async def test_a_root_that_the_process_before_wrote_is_not_written_again(tmp_path: Path) -> None:
    for is_first in (True, False):
        async with RecordStore.open(tmp_path / "state.sqlite", "boot", Clock()) as store:
            node = Node(store)
            node.writer.add(REF, UNALLOCATED, STARTED, ENDED, None)
            node.writer.flush()
            assert list(node.spans()) == (["claim"] if is_first else [])


async def test_the_schedule_ends_with_the_allocation_and_no_pod_is_read(node: Node) -> None:
    async with node.running() as writer:
        writer.add(REF, WITH_TIME, STARTED, ENDED, None)
        await settle()
        schedule = node.spans()["schedule"]
    assert (schedule.parent, schedule.operation) == (ROOT, ROOT)
    assert (schedule.start_ns, schedule.end_ns) == (
        CREATED.timestamp() * 1e9,
        ALLOCATED.timestamp() * 1e9,
    )
    assert node.api.read == []


async def test_without_a_time_of_allocation_it_ends_when_the_status_was_written_and_no_pod_is_read(
    node: Node,
) -> None:
    spec = {"time": CREATED.isoformat(), "fieldsV1": {"f:spec": {}}}
    status = {"time": ALLOCATED.isoformat(), "fieldsV1": {"f:status": {"f:allocation": {}}}}
    async with node.running() as writer:
        writer.add(REF, claim({}, [spec, {"time": None}, status]), STARTED, ENDED, None)
        await settle()
        schedule = node.spans()["schedule"]
    assert schedule.end_ns == ALLOCATED.timestamp() * 1e9
    assert node.api.read == []


@pytest.mark.parametrize("allocated", [WITH_TIME, WITHOUT_TIME])
async def test_no_pod_is_read_unless_spans_are_exported(
    node: Node, allocated: ResourceClaim
) -> None:
    async with node.running() as writer:
        writer.add(REF, allocated, STARTED, ENDED, None)
        await settle()
    assert node.api.read == []


async def test_a_pod_is_read_for_its_trace_context_if_spans_are_exported(exporting: Node) -> None:
    annotations = {names.TRACEPARENT_ANNOTATION: TRACEPARENT}
    exporting.api.pod = {**POD, "metadata": {**POD["metadata"], "annotations": annotations}}
    async with exporting.running() as writer:
        writer.add(REF, WITH_TIME, STARTED, ENDED, None)
        await settle()
        schedule = exporting.spans()["schedule"]
    assert (schedule.links, schedule.end_ns) == ((LINK,), ALLOCATED.timestamp() * 1e9)
    assert exporting.api.read == [POD_PATH]


async def test_without_any_time_of_allocation_the_schedule_ends_when_the_pod_was_scheduled(
    exporting: Node,
) -> None:
    node = exporting
    annotations = {names.TRACEPARENT_ANNOTATION: TRACEPARENT}
    node.api.pod = {**POD, "metadata": {**POD["metadata"], "annotations": annotations}}
    async with node.running() as writer:
        writer.add(REF, WITHOUT_TIME, STARTED, ENDED, None)
        await settle()
        schedule = node.spans()["schedule"]
    assert schedule.end_ns == SCHEDULED.timestamp() * 1e9
    assert schedule.links == (LINK,)
    assert node.api.read == [POD_PATH]
    (wait_s,) = node.api.waits_s
    assert 0 < wait_s <= 5


async def test_a_claim_that_is_not_allocated_has_no_schedule_and_no_pod_is_read(
    node: Node,
) -> None:
    async with node.running() as writer:
        writer.add(REF, UNALLOCATED, STARTED, ENDED, None)
        await settle()
    assert list(node.spans()) == ["claim"]
    assert node.api.read == []


@pytest.mark.parametrize(
    "pod",
    [
        NotFound("gone"),
        RetryableError(Reason.API_UNAVAILABLE, "no answer"),
        {**POD, "metadata": {"name": "train-0", "uid": "another"}},
        {**POD, "status": {}},
        {**POD, "status": {"conditions": [UNSCHEDULABLE]}},
    ],
    ids=["gone", "unreadable", "replaced", "without conditions", "not scheduled"],
)
async def test_a_pod_that_tells_nothing_costs_the_schedule_only(
    exporting: Node, pod: JsonObject | Exception
) -> None:
    node = exporting
    node.api.pod = pod
    async with node.running() as writer:
        writer.add(REF, WITHOUT_TIME, STARTED, ENDED, None)
        await settle()
        assert list(node.spans()) == ["claim"]
        assert node.api.read == [POD_PATH]


async def test_the_root_of_the_next_claim_does_not_wait_for_the_pod_of_another(
    exporting: Node,
) -> None:
    node = exporting
    node.api.is_hanging = True
    next_ref = REF._replace(uid=ClaimUID("11111111-2222-4333-8444-555555555555"))
    async with node.running() as writer:
        writer.add(REF, WITHOUT_TIME, STARTED, ENDED, None)
        await settle()
        writer.add(next_ref, None, STARTED, ENDED, None)
        await settle()
        assert list(node.spans(next_ref)) == ["claim"]


async def test_what_still_waits_at_the_end_is_written_without_reading_pods(node: Node) -> None:
    async with node.running() as writer:
        writer.add(REF, WITH_TIME, STARTED, ENDED, None)
    assert set(node.spans()) == {"claim", "schedule"}
    assert node.api.read == []


async def test_attempts_that_find_the_queue_full_are_dropped_and_counted(node: Node) -> None:
    refs = [REF._replace(uid=ClaimUID(f"uid-{number}")) for number in range(1024 + 2)]
    for ref in refs:
        node.writer.add(ref, None, STARTED, ENDED, None)
    value = node.telemetry.metrics.registry.get_sample_value
    assert value("nvdra_spans_dropped_total", {"reason": "queue_full"}) == 2
