# SPDX-License-Identifier: Apache-2.0
"""The metrics that every component has: operations, steps, API requests, watches, spans, tasks.

A component with more metrics has one `ProcessMetrics` and adds its own to the same registry.
Source: docs/reference/tracing.md, "Metrics".
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

from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.metrics.series import LabeledSeries

OPERATION_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0),  # 45 s: where the kubelet gives up
)
STEP_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 45.0),
)


class OperationMetrics(Protocol):
    """The metrics that `Telemetry` feeds. `ProcessMetrics` implements them."""

    @property
    def registry(self) -> CollectorRegistry:
        """The registry that `/metrics` serves."""
        ...

    def operation_started(self, operation: str) -> None:
        """An operation has started."""
        ...

    def operation_ended(self, operation: str) -> None:
        """An operation has ended, successfully or not."""
        ...

    def step(self, step: str, seconds: float) -> None:
        """One step of an operation took this long."""
        ...

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans were dropped before export: queue_full, export_failed, shutdown."""
        ...

    def task_failed(self, task: str) -> None:
        """A background task has failed unexpectedly and goes on."""
        ...


class ProcessMetrics:
    """The metrics of one component. There is one method per fact."""

    def __init__(self, *, driver: str) -> None:
        # No `_created` series: Prometheus does not use them. The switch is global to the library.
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
        self._in_flight = LabeledSeries(in_flight, driver)
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
        self._connections_dropped = self._counter(
            keys.CONNECTIONS_DROPPED,
            "Connections of clients that were too many, too slow, or sent too much at once.",
            keys.LABEL_SERVER,
            keys.LABEL_REASON,
        )
        self._task_failures = self._counter(
            keys.TASK_FAILURES,
            "Unexpected failures of background tasks, which are bugs. The task goes on.",
            keys.LABEL_TASK,
        )
        ProcessCollector(registry=self._registry)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry that `/metrics` serves."""
        return self._registry

    def operation_started(self, operation: str) -> None:
        """An operation has started."""
        self._in_flight(operation).inc()

    def operation_ended(self, operation: str) -> None:
        """An operation has ended, successfully or not."""
        self._in_flight(operation).dec()

    def initialize_operations(self, *operations: str) -> None:
        """Create the series of these operations with the value 0."""
        for operation in operations:
            self._in_flight(operation)

    def step(self, step: str, seconds: float) -> None:
        """One step of an operation took this long."""
        self._steps(step).observe(seconds)

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        """One request to the API server; `code` is the status, or the reason for having none."""
        self._api_requests(verb, code).observe(seconds)

    def watch_restart(self, resource: str) -> None:
        """A watch of `resource` ended and was restarted."""
        self._watch_restarts(resource).inc()

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans were dropped before export: queue_full, export_failed, shutdown."""
        self._spans_dropped(reason).inc(count)

    def connection_dropped(self, server: str, reason: str) -> None:
        """A server closed a connection: connections, bytes, open_files, time."""
        self._connections_dropped(server, reason).inc()

    def task_failed(self, task: str) -> None:
        """A background task has failed unexpectedly and goes on."""
        self._task_failures(task).inc()

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...]
    ) -> LabeledSeries[Histogram]:
        metric = Histogram(name, text, labels, buckets=buckets, registry=self._registry)
        return LabeledSeries(metric, *((self._driver,) if keys.LABEL_DRIVER in labels else ()))

    def _counter(self, name: str, text: str, *labels: str) -> LabeledSeries[Counter]:
        return LabeledSeries(Counter(name, text, labels, registry=self._registry))
