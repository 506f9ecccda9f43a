# SPDX-License-Identifier: Apache-2.0
"""Metrics leave by OTLP as `/metrics` shows them, when the standard variables ask for it."""

import asyncio
from collections.abc import Iterable, Mapping

import pytest
from nvdra_api.ids import NodeName, TraceID
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry import instrumentation
from nvdra_runtime.telemetry.export import otel_settings
from nvdra_runtime.telemetry.keys import PREPARE, Outcome
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_testing.telemetry import otlp_receiver
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2

NODE = NodeName("node-a")
TRACE = TraceID("3f0c1a527c1b4d0e8a550123456789ab")
SOON = {"OTEL_METRIC_EXPORT_INTERVAL": "50"}


@pytest.fixture
def metrics() -> PluginMetrics:
    return PluginMetrics(driver="gpu.nvidia.com", node=NODE)


async def send(
    metrics: PluginMetrics,
    collector: otlp_receiver.Receiver,
    *names: str,
    variables: Mapping[str, str] = SOON,
) -> Mapping[str, metrics_pb2.Metric]:
    """What the collector has once it knows these metrics."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **variables}
    settings = otel_settings.from_environment(environ)
    resource = instrumentation.resource_attributes("nvdra-gpu-plugin", "0.1.0", NODE)
    async with instrumentation.running(settings, resource, clock=SystemClock(), metrics=metrics):
        return await asyncio.to_thread(collector.wait_metrics, *names)


async def test_histograms_keep_their_buckets_labels_and_the_way_to_a_trace(
    metrics: PluginMetrics,
) -> None:
    for seconds in (0.0015, 0.0025, 0.0026, 100.0):
        metrics.call_answered(PREPARE, seconds, outcome=Outcome.SUCCESS, trace=TRACE)
    async with otlp_receiver.receiver() as collector:
        sent = await send(metrics, collector, "nvdra_claim_operation_seconds")
    histogram = sent["nvdra_claim_operation_seconds"].histogram
    assert histogram.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = histogram.data_points
    assert point.count == sum(point.bucket_counts) == 4
    assert point.sum == pytest.approx(100.0066)
    assert list(point.explicit_bounds[:4]) == [0.001, 0.002, 0.003, 0.005]
    assert list(point.bucket_counts[:4]) == [0, 1, 2, 0]
    assert point.bucket_counts[-1] == 1
    assert not point.HasField("min")
    assert _labels(point.attributes)["outcome"] == "success"
    assert {exemplar.trace_id.hex() for exemplar in point.exemplars} == {TRACE}
    assert point.start_time_unix_nano <= point.time_unix_nano


async def test_counters_are_sums_and_gauges_are_gauges(metrics: PluginMetrics) -> None:
    metrics.health_event("DeviceUnhealthy")
    metrics.set_devices({("gpu", "healthy"): 8})
    async with otlp_receiver.receiver() as collector:
        sent = await send(metrics, collector, "nvdra_device_health_events", "nvdra_devices")
    total = sent["nvdra_device_health_events"].sum
    assert total.is_monotonic
    assert [point.as_double for point in total.data_points] == [1.0]
    (devices,) = sent["nvdra_devices"].gauge.data_points
    assert devices.as_double == 8.0
    assert _labels(devices.attributes)["state"] == "healthy"


async def test_the_end_of_the_process_sends_what_there_is(metrics: PluginMetrics) -> None:
    async with otlp_receiver.receiver() as collector:
        variables = {"OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
        settings = otel_settings.from_environment(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **variables}
        )
        async with instrumentation.running(settings, {}, clock=SystemClock(), metrics=metrics):
            metrics.health_event("DeviceUnhealthy")
        collector.wait_metrics("nvdra_device_health_events", timeout_s=1)


def _labels(attributes: Iterable[common_pb2.KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in attributes}
