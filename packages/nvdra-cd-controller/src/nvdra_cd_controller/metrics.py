"""What the controller counts and measures, beside what every component does.

How many domains there are is taken from what is watched at each scrape, so that it is right after a
restart and forgets what is gone.
Source: spec/tracing.md §5, spec/compute-domain.md §14.2 (KW-21, 22).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nvdra_api.runtime.telemetry.process_metrics import ProcessMetrics
from nvdra_api.types import keys
from nvdra_api.types.domains import ComputeDomainStatus, Readiness
from nvdra_api.types.names import COMPUTE_DOMAIN_DRIVER
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

RECONCILE = "reconcile"
TEARDOWN = "teardown"

_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


class DomainMetrics:
    """The metrics of one controller.

    Attributes:
        process: Those of any component.
    """

    def __init__(self) -> None:
        self.process = ProcessMetrics(driver=COMPUTE_DOMAIN_DRIVER)
        self.process.show_idle(RECONCILE, TEARDOWN)
        self._formation = Histogram(
            keys.DOMAIN_FORMATION_SECONDS,
            "Time from a domain's creation until it was Ready with its nodes for the first time.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._phases = Histogram(
            keys.DOMAIN_PHASE_SECONDS,
            "Time from a domain's creation until its children were there, and from its deletion "
            "until it was gone.",
            (keys.LABEL_PHASE,),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    @property
    def registry(self) -> CollectorRegistry:
        """What `/metrics` shows."""
        return self.process.registry

    def operation_started(self, operation: str) -> None:
        """A piece of work on a domain begins."""
        self.process.operation_started(operation)

    def operation_ended(self, operation: str) -> None:
        """A piece of work on a domain is over."""
        self.process.operation_ended(operation)

    def step(self, step: str, seconds: float) -> None:
        """One step of it took this long."""
        self.process.step(step, seconds)

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans that no collector will see."""
        self.process.spans_dropped(reason, count)

    def formed(self, seconds: float) -> None:
        """A domain is Ready with its nodes, so long after its creation."""
        self._formation.observe(seconds)

    def phase(self, phase: str, seconds: float) -> None:
        """A domain's children were there so long after its creation, or it was gone."""
        self._phases.labels(phase).observe(seconds)

    def watch(
        self,
        statuses: Callable[[], Iterable[ComputeDomainStatus]],
        queue: Callable[[], tuple[int, int]],
    ) -> None:
        """Show from now on how many domains there are and how much there is to do.

        Args:
            statuses: Of all domains, as watched.
            queue: How many domains are being worked on or next, and how many failed last.
        """
        self.registry.register(_Scraped(statuses, queue))


class _Scraped(Collector):
    def __init__(
        self,
        statuses: Callable[[], Iterable[ComputeDomainStatus]],
        queue: Callable[[], tuple[int, int]],
    ) -> None:
        self._statuses = statuses
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        """What is so now."""
        found = list(self._statuses())
        counts = Counter(status.status or Readiness.NOT_READY.value for status in found)
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
        ready = sum(status.ready_nodes for status in found)
        expected = sum(status.expected_nodes for status in found)
        members.add_metric(["ready"], ready)
        members.add_metric(["lacking"], expected - ready)
        yield members
        depth, failing = self._queue()
        yield GaugeMetricFamily(
            keys.WORKQUEUE_DEPTH, "Domains that are being worked on, or next.", value=depth
        )
        yield GaugeMetricFamily(
            keys.WORKQUEUE_FAILING, "Domains that the last try on failed.", value=failing
        )
