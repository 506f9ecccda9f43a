"""A Prometheus registry in OpenTelemetry's form, and its exporter that sends it.

Cumulative sums and histograms since the process started, gauges as they are, exemplars with their
trace. Importing this module imports the exporter; only a process that sends metrics pays for it.
Source: OpenTelemetry's "Prometheus and OpenMetrics Compatibility".
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Exemplar as PrometheusExemplar
from prometheus_client.samples import Sample

from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry.environment import Collector
from nvdra_api.runtime.telemetry.otlp import COMPRESSIONS, SCOPE

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_SCHEMA: Final = ""
_Labels = tuple[tuple[str, str], ...]


class OtlpMetrics:
    """A connection to one collector; used by one thread, closed from any."""

    def __init__(self, collector: Collector, resource: Mapping[str, str], clock: Clock) -> None:
        self._resource = Resource(resource)
        self._clock = clock
        self._started_ns = _nanoseconds(clock)
        self._timeout_ms = collector.timeout_s * 1000
        self._exporter = OTLPMetricExporter(
            endpoint=collector.endpoint,
            certificate_file=collector.certificate,
            client_certificate_file=collector.client_certificate,
            client_key_file=collector.client_key,
            headers=collector.headers,
            timeout=collector.timeout_s,
            compression=COMPRESSIONS[collector.compression],
        )
        self._is_closed = False

    def send(self, registry: CollectorRegistry) -> bool:
        """Send everything as it is now; True when the collector took it."""
        now_ns = _nanoseconds(self._clock)
        metrics = [
            metric
            for family in registry.collect()
            if (metric := _metric(family, self._started_ns, now_ns)) is not None
        ]
        scope = ScopeMetrics(SCOPE, metrics, _SCHEMA)
        data = MetricsData([ResourceMetrics(self._resource, [scope], _SCHEMA)])
        sent = self._exporter.export(data, timeout_millis=self._timeout_ms)
        return sent is MetricExportResult.SUCCESS

    def close(self) -> None:
        """Abort a retry that waits, and let go of the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._exporter.shutdown()


def _metric(family: Family, started_ns: int, now_ns: int) -> Metric | None:
    """One family; None for one without a sample, or of a kind that we do not make."""
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


def _numbers(family: Family, started_ns: int, now_ns: int) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(dict(sample.labels), started_ns, now_ns, sample.value)
        for sample in family.samples
    ]


def _histograms(family: Family, started_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """One point for each set of labels; the buckets' counts are no longer those below as well."""
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
            min=None,  # type: ignore[arg-type]  # not known here, and optional in OTLP
            max=None,  # type: ignore[arg-type]  # likewise
            exemplars=[_exemplar(each.exemplar) for each in of_bucket if each.exemplar],
        )


def _exemplar(exemplar: PrometheusExemplar) -> Exemplar:
    """One observation and the trace it was in; of the span, Prometheus was not told."""
    trace = exemplar.labels.get("trace_id")
    return Exemplar(
        filtered_attributes={},
        value=exemplar.value,
        time_unix_nano=round(float(exemplar.timestamp or 0) * 1e9),
        span_id=0,
        trace_id=int(trace, 16) if trace else 0,
    )


def _by_labels(family: Family, name: str) -> Mapping[_Labels, list[Sample]]:
    found: dict[_Labels, list[Sample]] = {}
    for sample in family.samples:
        if sample.name == name:
            labels = tuple(item for item in sample.labels.items() if item[0] != "le")
            found.setdefault(labels, []).append(sample)
    return found


def _nanoseconds(clock: Clock) -> int:
    return round(clock.now().timestamp() * 1e9)
