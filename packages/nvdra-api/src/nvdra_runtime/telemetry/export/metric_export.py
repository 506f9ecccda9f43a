# SPDX-License-Identifier: Apache-2.0
"""Periodic export of the Prometheus registry to an OTLP collector, in addition to `/metrics`.

The SDK's `PeriodicExportingMetricReader` collects from the SDK's own instruments only, so the timer
is ours; the exporter is the SDK's. Importing this module imports the exporter, which takes about
200 ms; only a process with an endpoint imports it. Source: docs/reference/tracing.md, "Metrics".
"""

import contextvars
import logging
import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from prometheus_client import CollectorRegistry

from nvdra_runtime.process import task_failures
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.export.otel_settings import MetricExportSettings
from nvdra_runtime.telemetry.export.otlp_metrics import to_metrics_data
from nvdra_runtime.telemetry.export.resource import create_resource

LOG: Final = logs.logger(__name__)
_LIBRARY_LOG: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")


class PeriodicMetricExport:
    """Sends the whole registry at every interval, on a thread of its own."""

    def __init__(
        self,
        settings: MetricExportSettings,
        attributes: Mapping[str, str],
        registry: CollectorRegistry,
        clock: Clock,
    ) -> None:
        """Start the thread.

        Args:
            settings: Where metrics are sent and how often.
            attributes: Of the process; the `OTEL_*` variables override them.
            registry: The metrics.
            clock: For the times of the values.
        """
        self._settings = settings
        self._registry = registry
        self._clock = clock
        self._resource = create_resource(attributes)
        self._started_ns = self._now_ns()
        self._context = contextvars.copy_context()  # says where failures are counted
        self._is_closed = threading.Event()
        self._is_abandoned = False
        self._is_failing = False
        self._exporter = OTLPMetricExporter(endpoint=settings.endpoint)
        # A daemon thread: an unresponsive collector must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Send the registry a last time. Blocks until it is sent."""
        self._is_closed.set()
        self._thread.join()

    def abandon(self) -> None:
        """Abort a request that is waiting for its retry."""
        self._is_abandoned = True
        self._exporter.shutdown()

    def _run(self) -> None:
        _LIBRARY_LOG.addFilter(self._is_first_failure)
        try:
            while not self._is_closed.wait(self._settings.interval_s):
                self._log_result(self._context.run(self._try_send))
            self._context.run(self._try_send)
        finally:
            _LIBRARY_LOG.removeFilter(self._is_first_failure)
            if not self._is_abandoned:
                self._exporter.shutdown()

    def _try_send(self) -> bool:
        """Send, and note an unexpected failure: the thread has the next values to send."""
        try:
            return self._send()
        except Exception as error:  # noqa: BLE001 - at the top of a thread
            task_failures.note("metric export", "Cannot export metrics", error)
            return False

    def _send(self) -> bool:
        """Send everything as it is now. Returns whether the collector accepted it."""
        data = to_metrics_data(self._registry, self._resource, self._started_ns, self._now_ns())
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def _log_result(self, is_sent: bool) -> None:
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            message = "Metrics reach the collector again" if is_sent else "Cannot export metrics"
            LOG.info(message, endpoint=self._settings.endpoint)

    def _is_first_failure(self, record: logging.LogRecord) -> bool:
        """Let the exporter log the first failure only, not one at every interval."""
        del record
        return not self._is_failing

    def _now_ns(self) -> int:
        return round(self._clock.now().timestamp() * 1e9)
