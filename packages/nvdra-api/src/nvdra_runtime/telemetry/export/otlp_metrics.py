# SPDX-License-Identifier: Apache-2.0
"""Conversion of a Prometheus registry into OpenTelemetry's metrics data.

Counters become cumulative sums since the process started, gauges stay gauges, histograms keep their
exemplars with the trace ID. The SDK has no such conversion: its Prometheus exporter converts in the
other direction. Source: OpenTelemetry's "Prometheus and OpenMetrics Compatibility".
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.samples import Exemplar as PrometheusExemplar
from prometheus_client.samples import Sample

from nvdra_runtime.telemetry.export.resource import SCOPE

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_SCHEMA: Final = ""
_Labels = tuple[tuple[str, str], ...]


def to_metrics_data(
    registry: CollectorRegistry, resource: Resource, started_ns: int, now_ns: int
) -> MetricsData:
    """Convert everything that the registry has now.

    Args:
        registry: The metrics.
        resource: The process that they belong to.
        started_ns: Start of the cumulative values, nanoseconds since the epoch.
        now_ns: Time of the values.
    """
    metrics = [
        metric
        for family in registry.collect()
        if (metric := _metric(family, started_ns, now_ns)) is not None
    ]
    scope = ScopeMetrics(SCOPE, metrics, _SCHEMA)
    return MetricsData([ResourceMetrics(resource, [scope], _SCHEMA)])


def _metric(family: PrometheusMetric, started_ns: int, now_ns: int) -> Metric | None:
    """Convert one family. None if it has no samples or is of a type that we do not use."""
    if not family.samples:
        return None
    data: Sum | Gauge | Histogram
    if family.type == "counter":
        data = Sum(_numbers(family, started_ns, now_ns), _CUMULATIVE, is_monotonic=True)
    elif family.type == "gauge":
        data = Gauge(_numbers(family, started_ns, now_ns))
    elif family.type == "histogram":
        data = Histogram(list(_histograms(family, started_ns, now_ns)), _CUMULATIVE)
    else:
        return None
    return Metric(family.name, family.documentation, family.unit, data)


def _numbers(family: PrometheusMetric, started_ns: int, now_ns: int) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(dict(sample.labels), started_ns, now_ns, sample.value)
        for sample in family.samples
    ]


def _histograms(
    family: PrometheusMetric, started_ns: int, now_ns: int
) -> Iterator[HistogramDataPoint]:
    """One point for each set of labels. The cumulative bucket counts become single counts."""
    name, suffixes = family.name, ("_bucket", "_count", "_sum")
    buckets, counts, sums = (_by_labels(family, f"{name}{suffix}") for suffix in suffixes)
    for labels, of_bucket in buckets.items():
        bounds = [float(sample.labels["le"]) for sample in of_bucket]
        below = [0, *(round(sample.value) for sample in of_bucket)]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=started_ns,
            time_unix_nano=now_ns,
            count=round(counts[labels][0].value),
            sum=sums[labels][0].value,
            bucket_counts=[more - less for less, more in pairwise(below)],
            explicit_bounds=bounds[:-1],  # the last one is infinity
            min=None,  # type: ignore[arg-type]  # unknown here, and optional in OTLP
            max=None,  # type: ignore[arg-type]  # likewise
            exemplars=[_exemplar(each.exemplar) for each in of_bucket if each.exemplar],
        )


def _exemplar(exemplar: PrometheusExemplar) -> Exemplar:
    """One observation and its trace. Prometheus' exemplars do not have the span ID."""
    trace = exemplar.labels.get("trace_id")
    return Exemplar(
        filtered_attributes={},
        value=exemplar.value,
        time_unix_nano=round(float(exemplar.timestamp or 0) * 1e9),
        span_id=0,
        trace_id=int(trace, 16) if trace else 0,
    )


def _by_labels(family: PrometheusMetric, name: str) -> Mapping[_Labels, list[Sample]]:
    found: dict[_Labels, list[Sample]] = {}
    for sample in family.samples:
        if sample.name == name:
            labels = tuple(item for item in sample.labels.items() if item[0] != "le")
            found.setdefault(labels, []).append(sample)
    return found
