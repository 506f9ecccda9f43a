"""Metrics on their way to an OTLP collector, beside `/metrics`, on a thread of their own.

Every interval the whole registry, as it is then. A collector that fails is told once in the log,
and nobody waits for it. The exporter is imported in that thread. Source: spec/tracing.md §5.
"""

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from nvdra_api.runtime.process.clock import Clock
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.environment import MetricSettings

if TYPE_CHECKING:
    from nvdra_api.runtime.telemetry.otlp_metrics import OtlpMetrics

LOG: Final = logs.logger(__name__)
_LIBRARY_LOG: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")


class Sending:
    """The loop that sends; a `Job` for `export.in_background`."""

    def __init__(
        self,
        settings: MetricSettings,
        resource: Mapping[str, str],
        registry: CollectorRegistry,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._resource = resource
        self._registry = registry
        self._clock = clock
        self._is_closing = threading.Event()
        self._is_failing = False
        self._exporter: OtlpMetrics | None = None

    def work(self) -> None:
        """Send every interval, and once more at the end; the body of the thread."""
        # Imported here: some 200 ms that nobody else has to wait for.
        from nvdra_api.runtime.telemetry.otlp_metrics import OtlpMetrics

        self._exporter = OtlpMetrics(self._settings.collector, self._resource, self._clock)
        _LIBRARY_LOG.addFilter(self._is_news)
        try:
            while not self._is_closing.wait(self._settings.interval_s):
                self._note(self._exporter.send(self._registry))
            self._exporter.send(self._registry)
        finally:
            _LIBRARY_LOG.removeFilter(self._is_news)
            self._exporter.close()

    def close(self) -> None:
        """Send once more and end."""
        self._is_closing.set()

    def abandon(self) -> None:
        """Give up a request that hangs."""
        if self._exporter is not None:
            self._exporter.close()

    def _note(self, is_sent: bool) -> None:
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            sentence = "Metrics reach the collector again" if is_sent else "Cannot export metrics"
            LOG.info(sentence, endpoint=self._settings.collector.endpoint)

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Let the exporter say why it fails once, not every interval."""
        del record
        return not self._is_failing
