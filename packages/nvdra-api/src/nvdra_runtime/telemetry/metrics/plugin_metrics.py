# SPDX-License-Identifier: Apache-2.0
"""The metrics of a DRA plugin, in a registry of their own.

There is one method per fact, so callers need no metric or label names. Claims, pods and namespaces
are never labels. The same calls feed the metrics of the reference driver (`reference_metrics`).
Source: docs/reference/tracing.md, "Metrics".
"""

from collections.abc import Mapping

from nvdra_api.ids import NodeName, TraceID
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.metrics.process_metrics import (
    OPERATION_BUCKETS_S,
    STEP_BUCKETS_S,
    ProcessMetrics,
)
from nvdra_runtime.telemetry.metrics.reference_metrics import ReferenceMetrics
from nvdra_runtime.telemetry.metrics.series import LabeledSeries


class PluginMetrics:
    """The metrics of one driver on one node."""

    def __init__(self, *, driver: str, node: NodeName) -> None:
        self._process = ProcessMetrics(driver=driver)
        self._process.initialize_operations(keys.PREPARE, keys.UNPREPARE)
        self._driver = driver
        self._prepared_kinds: set[str] = set()
        self._device_states: set[tuple[str, str]] = set()
        self._drivers_seen: set[str] = set()
        self._obstacles_seen: set[str] = set()
        self._reference = ReferenceMetrics(self.registry, driver=driver, node=node)
        self._define_operations()
        self._define_node()
        self._define_outside()

    @property
    def registry(self) -> CollectorRegistry:
        """The registry that `/metrics` serves."""
        return self._process.registry

    def connection_dropped(self, server: str, reason: str) -> None:
        """A server closed a connection: connections, bytes, open_files, time."""
        self._process.connection_dropped(server, reason)

    def operation_started(self, operation: str) -> None:
        """An operation on a claim has started."""
        self._process.operation_started(operation)
        self._reference.started(operation)

    def operation_ended(self, operation: str) -> None:
        """An operation on a claim has ended, successfully or not."""
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
        """A kubelet call for a claim was answered after `seconds`, successfully or not.

        The exemplar names the claim's trace.
        """
        series = self._operations(operation, device_kind, outcome, reason)
        series.observe(seconds, {"trace_id": trace} if trace else None)
        self._reference.answered(operation, seconds, reason)

    def step(self, step: str, seconds: float) -> None:
        """One step of an operation took this long."""
        self._process.step(step, seconds)

    def lock_wait(self, seconds: float) -> None:
        """A claim waited this long for the locks of its devices. A wait of zero counts, too."""
        self._lock_wait().observe(seconds)

    def nvml_call(self, function: str, seconds: float) -> None:
        """One NVML call took this long."""
        self._nvml(function).observe(seconds)

    def set_prepared(self, claims: Mapping[str, int], devices: Mapping[str, int]) -> None:
        """Set how many claims and devices are prepared now, by kind of device."""
        for kind in {*self._prepared_kinds, *claims}:
            self._claims_prepared(kind).set(claims.get(kind, 0))
        self._prepared_kinds = set(claims)
        self._reference.set_prepared_devices(devices)

    def set_devices(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Set the node's devices by (kind, state). The states are healthy, tainted, unhealthy."""
        for kind, state in {*self._device_states, *counts}:
            self._devices(kind, state).set(counts.get((kind, state), 0))
        self._device_states = set(counts)

    def set_kernel_drivers(self, counts: Mapping[str, int]) -> None:
        """Set how many GPUs each driver of the kernel has; `none` for those without a driver."""
        for driver in self._drivers_seen | counts.keys():
            self._kernel_drivers(driver).set(counts.get(driver, 0))
        self._drivers_seen |= counts.keys()

    def set_vfio_withheld(self, counts: Mapping[str, int]) -> None:
        """Set how many GPUs are not offered to virtual machines, by what is in the way."""
        for obstacle in self._obstacles_seen | counts.keys():
            self._vfio_withheld(obstacle).set(counts.get(obstacle, 0))
        self._obstacles_seen |= counts.keys()

    def set_nvml_released(self, is_released: bool) -> None:
        """Set whether the plugin has given up NVML because an administrator asked for it."""
        self._nvml_released().set(is_released)

    def health_event(self, kind: str) -> None:
        """A device became unhealthy; `kind` is what is wrong with it."""
        self._health_events(kind).inc()

    def set_active(self, is_active: bool) -> None:
        """Set whether this instance is the active one of its driver on the node."""
        self._active().set(is_active)

    def slice_write(self, verb: str, outcome: str) -> None:
        """One write of a ResourceSlice: create, update or delete."""
        self._slice_writes(verb, outcome).inc()

    def api_request(self, verb: str, code: str, seconds: float) -> None:
        """One request to the API server; `code` is the status, or the reason for having none."""
        self._process.api_request(verb, code, seconds)

    def watch_restart(self, resource: str) -> None:
        """A watch of `resource` ended and was restarted."""
        self._process.watch_restart(resource)

    def spans_dropped(self, reason: str, count: int = 1) -> None:
        """Spans were dropped before export: queue_full, export_failed, shutdown."""
        self._process.spans_dropped(reason, count)

    def task_failed(self, task: str) -> None:
        """A background task has failed unexpectedly and goes on."""
        self._process.task_failed(task)

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
        self._active = self._gauge(
            keys.INSTANCE_ACTIVE,
            "1 for the instance of the driver that is active on this node, 0 for one that stands "
            "by.",
            keys.LABEL_DRIVER,
        )
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
        self._kernel_drivers = self._gauge(
            keys.KERNEL_DRIVERS_METRIC,
            "GPUs of this node by the driver of the kernel that has them, with PassthroughSupport.",
            keys.LABEL_DRIVER,
            keys.LABEL_KERNEL_DRIVER,
        )
        self._vfio_withheld = self._gauge(
            keys.VFIO_WITHHELD_METRIC,
            "GPUs that are not offered to virtual machines, by what is in the way, with "
            "PassthroughSupport.",
            keys.LABEL_DRIVER,
            keys.LABEL_OBSTACLE,
        )
        self._nvml_released = self._gauge(
            keys.NVML_RELEASED_METRIC,
            "1 while NVML is released because an administrator asked for it; prepares wait.",
            keys.LABEL_DRIVER,
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
    ) -> LabeledSeries[Histogram]:
        metric = Histogram(name, text, labels, buckets=buckets, registry=self.registry)
        return LabeledSeries(metric, *self._shared_values(labels))

    def _gauge(self, name: str, text: str, *labels: str) -> LabeledSeries[Gauge]:
        return LabeledSeries(
            Gauge(name, text, labels, registry=self.registry), *self._shared_values(labels)
        )

    def _counter(self, name: str, text: str, *labels: str) -> LabeledSeries[Counter]:
        return LabeledSeries(
            Counter(name, text, labels, registry=self.registry), *self._shared_values(labels)
        )

    def _shared_values(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        return (self._driver,) if keys.LABEL_DRIVER in labels else ()
