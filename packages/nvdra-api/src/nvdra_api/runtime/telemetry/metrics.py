"""Every metric of a DRA plugin, in a registry of its own.

One method per fact, so that whoever learns it needs no metric's name or label. No claim, pod or
namespace is a label. The reference driver's families are fed by the same calls (`reference`).
Source: spec/tracing.md §5.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nvdra_api.runtime.telemetry.process_metrics import (
    OPERATION_BUCKETS_S,
    STEP_BUCKETS_S,
    ProcessMetrics,
)
from nvdra_api.runtime.telemetry.reference import ReferenceMetrics
from nvdra_api.runtime.telemetry.series import Series
from nvdra_api.types import keys
from nvdra_api.types.ids import NodeName, TraceID


class Metrics:
    """What one driver on one node counts and measures."""

    def __init__(self, *, driver: str, node: NodeName) -> None:
        self._process = ProcessMetrics(driver=driver)
        self._process.show_idle(keys.PREPARE, keys.UNPREPARE)
        self._driver = driver
        self._kinds_held: set[str] = set()
        self._devices_seen: set[tuple[str, str]] = set()
        self._reference = ReferenceMetrics(self.registry, driver=driver, node=node)
        self._define_operations()
        self._define_node()
        self._define_outside()

    @property
    def registry(self) -> CollectorRegistry:
        """What `/metrics` shows; shared with nobody."""
        return self._process.registry

    def operation_started(self, operation: str) -> None:
        """Work on a claim begins."""
        self._process.operation_started(operation)
        self._reference.started(operation)

    def operation_ended(self, operation: str) -> None:
        """Work on a claim is over, well or badly."""
        self._process.operation_ended(operation)
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
        series = self._operations(operation, device_kind, outcome, reason)
        series.observe(seconds, {"trace_id": trace} if trace else None)
        self._reference.answered(operation, seconds, reason)

    def step(self, step: str, seconds: float) -> None:
        """One step of an operation took this long."""
        self._process.step(step, seconds)

    def lock_wait(self, seconds: float) -> None:
        """A claim waited this long for its devices' locks; zero counts too."""
        self._lock_wait().observe(seconds)

    def nvml_call(self, function: str, seconds: float) -> None:
        """One NVML call took this long."""
        self._nvml(function).observe(seconds)

    def held(self, claims: Mapping[str, int], devices: Mapping[str, int]) -> None:
        """How much is prepared now, by kind of device: claims, and devices."""
        for kind in {*self._kinds_held, *claims}:
            self._claims_prepared(kind).set(claims.get(kind, 0))
        self._kinds_held = set(claims)
        self._reference.held(devices)

    def devices(self, counts: Mapping[tuple[str, str], int]) -> None:
        """How many devices of each (kind, state) the node has; states: healthy, tainted, held."""
        for kind, state in {*self._devices_seen, *counts}:
            self._devices(kind, state).set(counts.get((kind, state), 0))
        self._devices_seen = set(counts)

    def health_event(self, kind: str) -> None:
        """A device was found unfit for use; `kind` says how."""
        self._health_events(kind).inc()

    def slice_write(self, verb: str, outcome: str) -> None:
        """One write of a ResourceSlice: create, update or delete."""
        self._slice_writes(verb, outcome).inc()

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        """One request to the API server; `code` is the status, or what kept it from having one."""
        self._process.api_request(verb, code, seconds)

    def watch_restart(self, resource: str) -> None:
        """A watch of `resource` ended and was begun again."""
        self._process.watch_restart(resource)

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans that no collector will see: queue_full, export_failed, shutdown."""
        self._process.spans_dropped(reason, count)

    def _define_operations(self) -> None:
        self._operations = self._histogram(
            keys.CLAIM_OPERATION_SECONDS,
            "Time from the kubelet's call for a claim to the answer, waits and failures included.",
            keys.LABEL_DRIVER,
            keys.LABEL_OPERATION,
            keys.LABEL_DEVICE_KIND,
            keys.LABEL_OUTCOME,
            keys.LABEL_REASON,
            buckets=OPERATION_BUCKETS_S,
        )
        self._lock_wait = self._histogram(
            keys.LOCK_WAIT_SECONDS,
            "Time a claim waited for other claims to let go of its devices.",
            keys.LABEL_DRIVER,
            buckets=STEP_BUCKETS_S,
        )

    def _define_node(self) -> None:
        self._claims_prepared = self._gauge(
            keys.CLAIMS_PREPARED,
            "Claims prepared on this node.",
            keys.LABEL_DRIVER,
            keys.LABEL_DEVICE_KIND,
        )
        self._devices = self._gauge(
            keys.DEVICES_METRIC,
            "Devices of this node by state.",
            keys.LABEL_DRIVER,
            keys.LABEL_DEVICE_KIND,
            keys.LABEL_STATE,
        )
        self._health_events = self._counter(
            keys.DEVICE_HEALTH_EVENTS,
            "Times that a device was found unfit for use, by what was wrong with it.",
            keys.LABEL_KIND,
        )
        self._nvml = self._histogram(
            keys.NVML_CALL_SECONDS,
            "Time one NVML call took.",
            keys.LABEL_FUNCTION,
            buckets=STEP_BUCKETS_S,
        )

    def _define_outside(self) -> None:
        self._slice_writes = self._counter(
            keys.RESOURCESLICE_WRITES,
            "Writes of ResourceSlices.",
            keys.LABEL_DRIVER,
            keys.LABEL_VERB,
            keys.LABEL_OUTCOME,
        )

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...]
    ) -> Series[Histogram]:
        metric = Histogram(name, text, labels, buckets=buckets, registry=self.registry)
        return Series(metric, *self._shared(labels))

    def _gauge(self, name: str, text: str, *labels: str) -> Series[Gauge]:
        return Series(Gauge(name, text, labels, registry=self.registry), *self._shared(labels))

    def _counter(self, name: str, text: str, *labels: str) -> Series[Counter]:
        return Series(Counter(name, text, labels, registry=self.registry), *self._shared(labels))

    def _shared(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        return (self._driver,) if keys.LABEL_DRIVER in labels else ()
