# SPDX-License-Identifier: Apache-2.0
"""The controller's own metrics, beside those of every component.

The numbers of domains and members are computed from the informers' caches at each scrape, so that
they are right after a restart and do not include deleted domains.
Source: docs/reference/tracing.md, "Metrics", docs/reference/compute-domain.md, "Races and
correctness" (KW-21, 22).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nvdra_api.names import COMPUTE_DOMAIN_DRIVER
from nvdra_api.v1beta1.compute_domain import ComputeDomainStatus, Readiness
from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

RECONCILE = "reconcile"
TEARDOWN = "teardown"

_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


class DomainMetrics:
    """The metrics of one controller.

    Attributes:
        process: The metrics that every component has.
    """

    def __init__(self) -> None:
        self.process = ProcessMetrics(driver=COMPUTE_DOMAIN_DRIVER)
        self.process.initialize_operations(RECONCILE, TEARDOWN)
        self._formation = Histogram(
            keys.DOMAIN_FORMATION_SECONDS,
            "Time from a domain's creation until it was Ready with its nodes for the first time.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._phases = Histogram(
            keys.DOMAIN_PHASE_SECONDS,
            "Time from a domain's creation until its children existed, and from the request to "
            "delete it until it was deleted.",
            (keys.LABEL_PHASE,),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    @property
    def registry(self) -> CollectorRegistry:
        """The registry that `/metrics` shows."""
        return self.process.registry

    def observe_formation(self, seconds: float) -> None:
        """Record how long after its creation a domain was Ready with its nodes."""
        self._formation.observe(seconds)

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Record how long a domain took to get its children, or to be deleted."""
        self._phases.labels(phase).observe(seconds)

    def register_gauges(
        self,
        statuses: Callable[[], Iterable[ComputeDomainStatus]],
        queue: Callable[[], tuple[int, int]],
    ) -> None:
        """Register gauges that are computed at each scrape.

        Args:
            statuses: The statuses of all domains.
            queue: The number of domains in the workqueue, and of those whose last attempt failed.
        """
        self.registry.register(_DomainCollector(statuses, queue))


class _DomainCollector(Collector):
    def __init__(
        self,
        statuses: Callable[[], Iterable[ComputeDomainStatus]],
        queue: Callable[[], tuple[int, int]],
    ) -> None:
        self._statuses = statuses
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        """The current values of the gauges."""
        all_statuses = list(self._statuses())
        counts = Counter(status.status or Readiness.NOT_READY.value for status in all_statuses)
        for name, text in (
            (keys.DOMAIN_INFO, "ComputeDomains by status."),
            (keys.REFERENCE_DOMAIN_INFO, "[ALPHA] ComputeDomains by status."),
        ):
            family = GaugeMetricFamily(name, text, labels=[keys.LABEL_STATUS])
            for readiness in Readiness:
                family.add_metric([readiness.value], counts[readiness.value])
            yield family
        members = GaugeMetricFamily(
            keys.DOMAIN_MEMBERS, "Nodes in ComputeDomains by state.", labels=[keys.LABEL_STATE]
        )
        ready = sum(status.ready_nodes for status in all_statuses)
        expected = sum(status.expected_nodes for status in all_statuses)
        members.add_metric(["ready"], ready)
        members.add_metric(["lacking"], expected - ready)
        yield members
        depth, failing = self._queue()
        yield GaugeMetricFamily(
            keys.WORKQUEUE_DEPTH,
            "Domains that are being reconciled or waiting for it.",
            value=depth,
        )
        yield GaugeMetricFamily(
            keys.WORKQUEUE_FAILING, "Domains whose last reconciliation failed.", value=failing
        )
