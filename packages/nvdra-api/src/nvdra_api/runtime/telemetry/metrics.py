"""Every metric of a component, in a registry of its own; most are a DRA plugin's.

One method per fact, so that whoever learns it needs no metric's name or label. No claim, pod or
namespace is a label. The reference driver's families are fed by the same calls (`reference`).
Source: spec/tracing.md §5.
"""

from collections.abc import Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from nvdra_api.runtime.telemetry.reference import ReferenceMetrics
from nvdra_api.types import keys
from nvdra_api.types.ids import NodeName, TraceID

_OPERATION_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0),  # 45 s: where the kubelet gives up
)
_STEP_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 45.0),
)


class Metrics:
    """What one driver on one node counts and measures.

    Attributes:
        registry: What `/metrics` shows; shared with nobody.
    """

    def __init__(self, *, driver: str, node: NodeName, has_claims: bool = True) -> None:
        """Define them.

        Args:
            driver: Label of most of them.
            node: Label of the reference's.
            has_claims: Whether this component prepares claims; what others would count of them is
                kept where nobody looks.
        """
        # No `_created` series: Prometheus has no use for them. The switch is the library's.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self.registry = CollectorRegistry()
        self._driver = driver
        self._step_series: dict[str, Histogram] = {}
        self._kinds_held: set[str] = set()
        self._devices_seen: set[tuple[str, str]] = set()
        of_claims = self.registry if has_claims else CollectorRegistry()
        self._reference = ReferenceMetrics(of_claims, driver=driver, node=node)
        self._define_claims(of_claims)
        self._define_devices(of_claims)
        self._define_steps()
        ProcessCollector(registry=self.registry)

    def operation_started(self, operation: str) -> None:
        """Work on a claim begins."""
        self._in_flight.labels(self._driver, operation).inc()
        self._reference.started(operation)

    def operation_ended(self, operation: str) -> None:
        """Work on a claim is over, well or badly."""
        self._in_flight.labels(self._driver, operation).dec()
        self._reference.ended(operation)

    def call_answered(
        self,
        operation: str,
        seconds: float,
        *,
        outcome: keys.Outcome,
        reason: str = "",
        device_kind: str = "",
        trace: TraceID | None = None,
    ) -> None:
        """The kubelet has its answer for a claim, a good or a bad one, after `seconds`.

        The exemplar leads to the claim's trace.
        """
        series = self._operations.labels(self._driver, operation, device_kind, outcome, reason)
        series.observe(seconds, {"trace_id": trace} if trace else None)
        self._reference.answered(operation, seconds, reason)

    def step(self, step: str, seconds: float) -> None:
        """One step of an operation took this long."""
        series = self._step_series.get(step)
        if series is None:
            series = self._step_series[step] = self._steps.labels(self._driver, step)
        series.observe(seconds)

    def lock_wait(self, seconds: float) -> None:
        """A claim waited this long for its devices' locks; zero counts too."""
        self._lock_wait.labels(self._driver).observe(seconds)

    def nvml_call(self, function: str, seconds: float) -> None:
        """One NVML call took this long."""
        self._nvml.labels(function).observe(seconds)

    def held(self, claims: Mapping[str, int], devices: Mapping[str, int]) -> None:
        """How much is prepared now, by kind of device: claims, and devices."""
        for kind in {*self._kinds_held, *claims}:
            self._claims_prepared.labels(self._driver, kind).set(claims.get(kind, 0))
        self._kinds_held = set(claims)
        self._reference.held(devices)

    def devices(self, counts: Mapping[tuple[str, str], int]) -> None:
        """How many devices of each (kind, state) the node has; states: healthy, tainted, held."""
        for kind, state in {*self._devices_seen, *counts}:
            self._devices.labels(self._driver, kind, state).set(counts.get((kind, state), 0))
        self._devices_seen = set(counts)

    def health_event(self, kind: str) -> None:
        """A device was found unfit for use; `kind` says how."""
        self._health_events.labels(kind).inc()

    def slice_write(self, verb: str, outcome: str) -> None:
        """One write of a ResourceSlice: create, update or delete."""
        self._slice_writes.labels(self._driver, verb, outcome).inc()

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        """One request to the API server; `code` is the status, or what kept it from having one."""
        self._api_requests.labels(verb, code).observe(seconds)

    def watch_restart(self, resource: str) -> None:
        """A watch of `resource` ended and was begun again."""
        self._watch_restarts.labels(resource).inc()

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans that no collector will see: queue_full, export_failed, shutdown."""
        self._spans_dropped.labels(reason).inc(count)

    def _define_claims(self, registry: CollectorRegistry) -> None:
        self._operations = _histogram(
            registry,
            keys.CLAIM_OPERATION_SECONDS,
            "Time from the kubelet's call for a claim to the answer, waits and failures included.",
            keys.LABEL_DRIVER,
            keys.LABEL_OPERATION,
            keys.LABEL_DEVICE_KIND,
            keys.LABEL_OUTCOME,
            keys.LABEL_REASON,
            buckets=_OPERATION_BUCKETS_S,
        )
        self._in_flight = _gauge(
            registry,
            keys.OPERATIONS_IN_FLIGHT,
            "Operations on claims that have begun and not ended.",
            keys.LABEL_DRIVER,
            keys.LABEL_OPERATION,
        )
        for operation in (keys.PREPARE, keys.UNPREPARE):
            self._in_flight.labels(self._driver, operation)
        self._lock_wait = _histogram(
            registry,
            keys.LOCK_WAIT_SECONDS,
            "Time a claim waited for other claims to let go of its devices.",
            keys.LABEL_DRIVER,
            buckets=_STEP_BUCKETS_S,
        )

    def _define_devices(self, registry: CollectorRegistry) -> None:
        self._claims_prepared = _gauge(
            registry,
            keys.CLAIMS_PREPARED,
            "Claims prepared on this node.",
            keys.LABEL_DRIVER,
            keys.LABEL_DEVICE_KIND,
        )
        self._devices = _gauge(
            registry,
            keys.DEVICES_METRIC,
            "Devices of this node by state.",
            keys.LABEL_DRIVER,
            keys.LABEL_DEVICE_KIND,
            keys.LABEL_STATE,
        )
        self._health_events = _counter(
            registry,
            keys.DEVICE_HEALTH_EVENTS,
            "Times that a device was found unfit for use, by what was wrong with it.",
            keys.LABEL_KIND,
        )
        self._nvml = _histogram(
            registry,
            keys.NVML_CALL_SECONDS,
            "Time one NVML call took.",
            keys.LABEL_FUNCTION,
            buckets=_STEP_BUCKETS_S,
        )
        self._slice_writes = _counter(
            registry,
            keys.RESOURCESLICE_WRITES,
            "Writes of ResourceSlices.",
            keys.LABEL_DRIVER,
            keys.LABEL_VERB,
            keys.LABEL_OUTCOME,
        )

    def _define_steps(self) -> None:
        self._steps = _histogram(
            self.registry,
            keys.STEP_SECONDS,
            "Time one step of an operation took.",
            keys.LABEL_DRIVER,
            keys.LABEL_STEP,
            buckets=_STEP_BUCKETS_S,
        )
        self._api_requests = _histogram(
            self.registry,
            keys.API_REQUESTS_SECONDS,
            "Time one request to the API server took.",
            keys.LABEL_VERB,
            keys.LABEL_CODE,
            buckets=_OPERATION_BUCKETS_S,
        )
        self._watch_restarts = _counter(
            self.registry,
            keys.WATCH_RESTARTS,
            "Watches that ended and were begun again.",
            keys.LABEL_RESOURCE,
        )
        self._spans_dropped = _counter(
            self.registry,
            keys.SPANS_DROPPED,
            "Spans that were meant for a collector and did not reach it.",
            keys.LABEL_REASON,
        )


def _histogram(
    registry: CollectorRegistry, name: str, text: str, *labels: str, buckets: tuple[float, ...]
) -> Histogram:
    return Histogram(name, text, labels, buckets=buckets, registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Gauge:
    return Gauge(name, text, labels, registry=registry)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(name, text, labels, registry=registry)
