"""The metrics of any component: its operations and steps, its requests and watches, lost spans.

A component with facts of its own holds one of these and counts them beside it, in its registry.
Source: spec/tracing.md §5.
"""

from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from nvdra_api.runtime.telemetry.series import Series
from nvdra_api.types import keys

OPERATION_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0),  # 45 s: where the kubelet gives up
)
STEP_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 45.0),
)


class Measures(Protocol):
    """What `Telemetry` tells of; `ProcessMetrics` counts it."""

    @property
    def registry(self) -> CollectorRegistry:
        """What `/metrics` shows; shared with nobody."""
        ...

    def operation_started(self, operation: str) -> None:
        """A piece of work begins."""
        ...

    def operation_ended(self, operation: str) -> None:
        """A piece of work is over, well or badly."""
        ...

    def step(self, step: str, seconds: float) -> None:
        """One step of an operation took this long."""
        ...

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans that no collector will see: queue_full, export_failed, shutdown."""
        ...


class ProcessMetrics:
    """What every component counts and measures; one method per fact."""

    def __init__(self, *, driver: str) -> None:
        # No `_created` series: Prometheus has no use for them. The switch is the library's.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self._registry = CollectorRegistry()
        self._driver = driver
        self._steps = self._histogram(
            keys.STEP_SECONDS,
            "Time one step of an operation took.",
            keys.LABEL_DRIVER,
            keys.LABEL_STEP,
            buckets=STEP_BUCKETS_S,
        )
        in_flight = Gauge(
            keys.OPERATIONS_IN_FLIGHT,
            "Operations that have begun and not ended.",
            (keys.LABEL_DRIVER, keys.LABEL_OPERATION),
            registry=self._registry,
        )
        self._in_flight = Series(in_flight, driver)
        self._api_requests = self._histogram(
            keys.API_REQUESTS_SECONDS,
            "Time one request to the API server took.",
            keys.LABEL_VERB,
            keys.LABEL_CODE,
            buckets=OPERATION_BUCKETS_S,
        )
        self._watch_restarts = self._counter(
            keys.WATCH_RESTARTS,
            "Watches that ended and were begun again.",
            keys.LABEL_RESOURCE,
        )
        self._spans_dropped = self._counter(
            keys.SPANS_DROPPED,
            "Spans that were meant for a collector and did not reach it.",
            keys.LABEL_REASON,
        )
        ProcessCollector(registry=self._registry)

    @property
    def registry(self) -> CollectorRegistry:
        """What `/metrics` shows; shared with nobody."""
        return self._registry

    def operation_started(self, operation: str) -> None:
        """A piece of work begins."""
        self._in_flight(operation).inc()

    def operation_ended(self, operation: str) -> None:
        """A piece of work is over, well or badly."""
        self._in_flight(operation).dec()

    def show_idle(self, *operations: str) -> None:
        """Show these as 0 from the start."""
        for operation in operations:
            self._in_flight(operation)

    def step(self, step: str, seconds: float) -> None:
        """One step of an operation took this long."""
        self._steps(step).observe(seconds)

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        """One request to the API server; `code` is the status, or what kept it from having one."""
        self._api_requests(verb, code).observe(seconds)

    def watch_restart(self, resource: str) -> None:
        """A watch of `resource` ended and was begun again."""
        self._watch_restarts(resource).inc()

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans that no collector will see: queue_full, export_failed, shutdown."""
        self._spans_dropped(reason).inc(count)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...]
    ) -> Series[Histogram]:
        metric = Histogram(name, text, labels, buckets=buckets, registry=self._registry)
        return Series(metric, *((self._driver,) if keys.LABEL_DRIVER in labels else ()))

    def _counter(self, name: str, text: str, *labels: str) -> Series[Counter]:
        return Series(Counter(name, text, labels, registry=self._registry))
