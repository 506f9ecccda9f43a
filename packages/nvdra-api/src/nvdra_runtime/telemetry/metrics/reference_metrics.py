# SPDX-License-Identifier: Apache-2.0
"""The metrics of the reference driver, so that its dashboards and alerts keep working.

Names, labels, buckets and the prefix of the help texts are the same. Two things differ, as in our
other metrics: an operation is in flight from its start, because there is no node-wide lock to wait
for, and several can be in flight at once. `plugin_metrics` feeds them.
Source: docs/reference/gpu-prepare.md, "Metrics and timing logs".
"""

from collections.abc import Mapping

from nvdra_api.errors import Reason
from nvdra_api.ids import NodeName
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nvdra_runtime.telemetry import keys
from nvdra_runtime.telemetry.metrics.series import LabeledSeries

_BUCKETS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
_DEVICE_TYPES = ("gpu", "mig", "vfio", "unknown")
_OPERATIONS = (keys.PREPARE, keys.UNPREPARE)
_BY_OPERATION = [keys.LABEL_DRIVER, keys.LABEL_OPERATION]
_BY_ERROR = [keys.LABEL_DRIVER, keys.LABEL_ERROR_TYPE]


class ReferenceMetrics:
    """The `nvidia_dra_*` metrics. They count claims, not calls."""

    def __init__(self, registry: CollectorRegistry, *, driver: str, node: NodeName) -> None:
        requests = Counter(
            keys.REFERENCE_REQUESTS,
            "[ALPHA] Claims prepared or unprepared successfully.",
            _BY_OPERATION,
            registry=registry,
        )
        seconds = Histogram(
            keys.REFERENCE_REQUEST_SECONDS,
            "[ALPHA] Time of successful operations on claims, waits for locks included.",
            _BY_OPERATION,
            buckets=_BUCKETS_S,
            registry=registry,
        )
        in_flight = Gauge(
            keys.REFERENCE_REQUESTS_INFLIGHT,
            "[ALPHA] Operations on claims in progress.",
            _BY_OPERATION,
            registry=registry,
        )
        prepared_devices = Gauge(
            keys.REFERENCE_PREPARED_DEVICES,
            "[ALPHA] Devices prepared on this node, by type.",
            [keys.LABEL_NODE, keys.LABEL_DRIVER, keys.LABEL_DEVICE_TYPE],
            registry=registry,
        )
        errors = {
            keys.PREPARE: Counter(
                keys.REFERENCE_PREPARE_ERRORS,
                "[ALPHA] Claims that could not be prepared.",
                _BY_ERROR,
                registry=registry,
            ),
            keys.UNPREPARE: Counter(
                keys.REFERENCE_UNPREPARE_ERRORS,
                "[ALPHA] Claims that could not be unprepared.",
                _BY_ERROR,
                registry=registry,
            ),
        }
        self._requests = LabeledSeries(requests, driver)
        self._seconds = LabeledSeries(seconds, driver)
        self._in_flight = LabeledSeries(in_flight, driver)
        self._prepared_devices = LabeledSeries(prepared_devices, node, driver)
        self._device_counts: dict[str, int] = {}
        self._errors = {name: LabeledSeries(counter, driver) for name, counter in errors.items()}
        self._initialize_series()

    def started(self, operation: str) -> None:
        """An operation on a claim has started."""
        if operation in _OPERATIONS:
            self._in_flight(operation).inc()

    def ended(self, operation: str) -> None:
        """An operation on a claim has ended."""
        if operation in _OPERATIONS:
            self._in_flight(operation).dec()

    def answered(self, operation: str, seconds: float, reason: str) -> None:
        """A kubelet call for a claim was answered; `reason` is empty for a success."""
        if operation not in _OPERATIONS:
            return
        if reason:
            self._errors[operation](_error_type(operation, reason)).inc()
            return
        self._requests(operation).inc()
        self._seconds(operation).observe(seconds)

    def set_prepared_devices(self, devices: Mapping[str, int]) -> None:
        """Set the devices that are prepared now, by type. Absent types are zero."""
        for kind in _DEVICE_TYPES:
            count = devices.get(kind, 0)
            if self._device_counts.get(kind) != count:  # a claim changes one type, or two
                self._device_counts[kind] = count
                self._prepared_devices(kind).set(count)

    def _initialize_series(self) -> None:
        for operation in _OPERATIONS:
            self._requests(operation)
            self._seconds(operation)
            self._in_flight(operation)
        self.set_prepared_devices({})


def _error_type(operation: str, reason: str) -> str:
    if reason == Reason.LOCK_TIMEOUT:
        return "lock_acquire"
    return f"{operation}_devices"
