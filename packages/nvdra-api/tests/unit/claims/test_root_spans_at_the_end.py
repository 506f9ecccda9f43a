# SPDX-License-Identifier: Apache-2.0
"""What waits for a pod when the process ends is written without the pod."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from nvdra_api.ids import ClaimUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.claims import root_spans
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.connection import JSON
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.telemetry import trace_ids
from nvdra_runtime.telemetry.export.otel_settings import SpanExportSettings
from nvdra_runtime.telemetry.export.span_export import SpanExportQueue
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder

NODE = NodeName("node-a")
NOW = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)


class Clock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class SilentApi(Client):
    """An API server that does not answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_asked = asyncio.Event()

    async def get(
        self,
        path: str,
        deadline: float,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> JsonObject:
        self.asked.append(path)
        self.is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError("it never answers")


def claim(number: int) -> ResourceClaim:
    return ResourceClaim.model_validate(
        {
            "metadata": {"namespace": "ml", "name": f"c-{number}", "uid": f"uid-{number}"},
            "status": {
                "reservedFor": [{"resource": "pods", "name": "train-0", "uid": "pod-uid"}],
                "allocation": {"allocationTimestamp": NOW.isoformat()},
            },
        }
    )


async def test_the_schedule_of_each_claim_is_written_whether_its_pod_is_asked_for_or_waits(
    tmp_path: Path,
) -> None:
    metrics = PluginMetrics(driver="d", node=NODE)
    collector = SpanExportSettings("http://127.0.0.1:9/v1/traces")
    queue = SpanExportQueue(collector, 0.0, {}, metrics)  # none is sampled
    telemetry = Telemetry(Clock(), metrics, TraceRecorder(), queue)
    refs = [ClaimRef("ml", f"c-{number}", ClaimUID(f"uid-{number}")) for number in range(3)]
    api = SilentApi()
    try:
        async with (
            RecordStore.open(tmp_path / "state.sqlite", "boot", Clock()) as store,
            root_spans.running(NODE, api, store, telemetry) as writer,
        ):
            for number, ref in enumerate(refs):
                writer.add(ref, claim(number), NOW, NOW, None)
            async with asyncio.timeout(5):
                await api.is_asked.wait()
    finally:
        queue.shutdown()
    assert api.asked == ["/api/v1/namespaces/ml/pods/train-0"]
    for ref in refs:
        trace = telemetry.recorder.trace(trace_ids.trace_id(ref.uid))
        assert trace is not None
        assert sorted(span.name for span in trace.spans) == ["claim", "schedule"]
