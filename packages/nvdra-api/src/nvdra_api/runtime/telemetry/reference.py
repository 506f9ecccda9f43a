"""The reference driver's metrics, so that its dashboards and alerts keep working.

Fed by `metrics`; same names, labels, buckets and help prefix. Two habits differ, as in our other
metrics: in-flight counts from the beginning of the work (there is no node-wide lock to start from),
and several can be in flight. Source: spec/gpu-prepare.md §22.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nvdra_api.runtime.telemetry.series import Series
from nvdra_api.types import keys
from nvdra_api.types.errors import Reason
from nvdra_api.types.ids import NodeName

_BUCKETS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
_DEVICE_TYPES = ("gpu", "mig", "vfio", "unknown")
_OPERATIONS = (keys.PREPARE, keys.UNPREPARE)
_BY_OPERATION = [keys.LABEL_DRIVER, keys.LABEL_OPERATION]
_BY_ERROR = [keys.LABEL_DRIVER, keys.LABEL_ERROR_TYPE]


class ReferenceMetrics:
    """The `nvidia_dra_*` families; claims are counted, not calls."""

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
        self._requests = Series(requests, driver)
        self._seconds = Series(seconds, driver)
        self._in_flight = Series(in_flight, driver)
        self._prepared_devices = Series(prepared_devices, node, driver)
        self._errors = {name: Series(counter, driver) for name, counter in errors.items()}
        self._show_zeros()

    def started(self, operation: str) -> None:
        """Work on a claim begins."""
        if operation in _OPERATIONS:
            self._in_flight(operation).inc()

    def ended(self, operation: str) -> None:
        """Work on a claim is over."""
        if operation in _OPERATIONS:
            self._in_flight(operation).dec()

    def answered(self, operation: str, seconds: float, reason: str) -> None:
        """The kubelet has its answer for a claim; `reason` is empty for a success."""
        if operation not in _OPERATIONS:
            return
        if reason:
            self._errors[operation](_error_type(operation, reason)).inc()
            return
        self._requests(operation).inc()
        self._seconds(operation).observe(seconds)

    def held(self, devices: Mapping[str, int]) -> None:
        """Devices that are prepared now, by type; absent types are zero."""
        for kind in _DEVICE_TYPES:
            series = self._prepared_devices(kind)
            series.set(devices.get(kind, 0))

    def _show_zeros(self) -> None:
        for operation in _OPERATIONS:
            self._requests(operation)
            self._seconds(operation)
            self._in_flight(operation)
        self.held({})


def _error_type(operation: str, reason: str) -> str:
    if reason == Reason.LOCK_TIMEOUT:
        return "lock_acquire"
    return f"{operation}_devices"
