# SPDX-License-Identifier: Apache-2.0
"""The webhook's own metrics, beside those of every component.

Labels have few values: what a client may send is replaced by `other` if it is not expected.
Source: docs/reference/webhook.md, "Intended differences".
"""

from collections.abc import Callable, Iterator
from typing import Final

from nvdra_api.names import GPU_DRIVER
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics
from nvdra_runtime.telemetry.metrics.series import LabeledSeries
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nvdra_webhook.admission.decision import KINDS, VERSIONS
from nvdra_webhook.admission.review import Request, Verdict

ALLOWED: Final = "allowed"
DENIED: Final = "denied"
OTHER: Final = "other"

_OPERATIONS: Final = frozenset(("CREATE", "UPDATE", "DELETE", "CONNECT"))
_BUCKETS_S: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class WebhookMetrics:
    """The metrics of one webhook.

    Attributes:
        process: The metrics that every component has.
    """

    def __init__(self) -> None:
        self.process = ProcessMetrics(driver=GPU_DRIVER)
        self._requests = LabeledSeries(
            Counter(
                keys.WEBHOOK_REQUESTS,
                "Admission requests by verdict.",
                (keys.LABEL_RESOURCE, keys.LABEL_VERSION, keys.LABEL_OPERATION, keys.LABEL_VERDICT),
                registry=self.registry,
            )
        )
        self._seconds = Histogram(
            keys.WEBHOOK_DURATION_SECONDS,
            "Time from a complete request until its answer.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._config_errors = LabeledSeries(
            Counter(
                keys.WEBHOOK_CONFIG_ERRORS,
                "Configs with problems, by their kind, or undecodable.",
                (keys.LABEL_KIND,),
                registry=self.registry,
            )
        )
        self._warnings = Counter(
            keys.WEBHOOK_WARNINGS, "Warnings to users.", registry=self.registry
        )
        self._failures = Counter(
            keys.WEBHOOK_INTERNAL_ERRORS,
            "Requests that were answered with 500 because of a bug.",
            registry=self.registry,
        )
        self._bad_requests = LabeledSeries(
            Counter(
                keys.WEBHOOK_BAD_REQUESTS,
                "Requests that are no admission reviews, by HTTP status.",
                (keys.LABEL_CODE,),
                registry=self.registry,
            )
        )
        self._reload_failures = Counter(
            keys.WEBHOOK_CERTIFICATE_FAILURES,
            "Key pairs that could not be read, made or stored; the one in use stays.",
            registry=self.registry,
        )

    @property
    def registry(self) -> CollectorRegistry:
        """The registry that `/metrics` shows."""
        return self.process.registry

    def answered(self, request: Request, verdict: Verdict, seconds: float) -> None:
        """A request got its verdict."""
        resource = request.resource
        self._requests(
            resource.resource if resource.resource in KINDS else OTHER,
            resource.version if resource.version in VERSIONS else OTHER,
            request.operation if request.operation in _OPERATIONS else OTHER,
            ALLOWED if verdict.is_allowed else DENIED,
        ).inc()
        self._seconds.observe(seconds)
        for kind in verdict.config_errors:
            self._config_errors(kind).inc()
        if verdict.warnings:
            self._warnings.inc(len(verdict.warnings))

    def bad_request(self, code: int) -> None:
        """A request was no admission review."""
        self._bad_requests(str(code)).inc()

    def internal_error(self) -> None:
        """A request was answered with 500."""
        self._failures.inc()

    def certificate_failure(self) -> None:
        """There is no newer key pair, and should be."""
        self._reload_failures.inc()

    def register_certificate(self, not_after: Callable[[], float | None]) -> None:
        """Show when the certificate in use expires, in seconds since 1970."""
        self.registry.register(_CertificateCollector(not_after))


class _CertificateCollector(Collector):
    def __init__(self, not_after: Callable[[], float | None]) -> None:
        self._not_after = not_after

    def collect(self) -> Iterator[Metric]:
        """The gauge; no sample while there is no certificate."""
        family = GaugeMetricFamily(
            keys.WEBHOOK_CERTIFICATE_NOT_AFTER_SECONDS,
            "When the certificate in use expires, in seconds since 1970.",
        )
        seconds = self._not_after()
        if seconds is not None:
            family.add_metric([], seconds)
        yield family
